"""Laplacian attention, linear in the number of tokens."""

import math

from torch import Tensor

from cuda_ops import KERNELS, RIDGE, SOLVERS
from cuda_ops.laplacian_kernel import flops as kernel_flops
from cuda_ops.newton_schulz import default_num_iters
from cuda_ops.newton_schulz import flops as inverse_flops

from ..arguments import check_choice, list_choices
from .algebra import (
    CENTERINGS,
    WHITENINGS,
    dense_attention,
    nystrom_attention,
    pool_tokens,
)
from .base import (
    Attention,
    depthwise_conv,
    full_precision,
    to_map,
    to_tokens,
)

APPROXIMATIONS = ('nystrom', 'exact')
LANDMARK_SOURCES = ('query', 'key', 'mean')
LANDMARK_POOLS = ('avg', 'dwconv')


class LaplacianAttention(Attention):
    """Multi-head attention with a whitened Laplacian kernel.

    ``proj(Z V + DWC(V))`` of LaplacianFormer (arXiv 2604.20368, Eq. 4-6 and
    its Nystrom form). q and k are scaled by D^(-1/4) as in SOFT, so bandwidth
    4 is 4 D^(1/4) on unscaled q and k. Landmarks are pooled from the map onto
    a fixed grid. All steps from the distances to ``Z V`` run in float32
    (float64 for float64 inputs) under any autocast. Images of a batch do not
    influence each other.

    Maps with no more tokens than the landmark grid has cells use the exact
    kernel instead of its Nystrom form, except with ``landmark_pool='dwconv'``,
    whose weights would get no gradient.

    Args:
        dim, num_heads: See :class:`Attention`.
        kernel: A name in ``cuda_ops.KERNELS``. Default: ``'laplacian'``.
        bandwidth: Positive; None for the kernel's default. Default: None.
        approximation: ``'nystrom'``, or ``'exact'`` for the dense kernel
            matrix (quadratic). Default: ``'nystrom'``.
        landmark_grid: Landmarks along each side, >= 1. Default: 7 (M = 49).
        landmark_source: Map that is pooled: ``'query'``, ``'key'`` or
            ``'mean'`` of both. Default: ``'query'``.
        landmark_pool: ``'avg'``, or ``'dwconv'`` for a depthwise 3x3
            convolution before the averages. Default: ``'avg'``.
        solver: A name in ``cuda_ops.SOLVERS``. Default: ``'newton_schulz'``.
        num_iters: Iterations of the solver, >= 1; None for its default.
            Default: None.
        ridge: Added to the diagonal of the landmark matrix. Default: 0.01.
        whitening: ``'diagonal'``, ``'none'`` or ``'row'``, see
            :func:`whitened_product`. Default: ``'diagonal'``.
        centering: ``'both'`` or ``'column'``. Default: ``'both'``.
        projections: ``local_kernel_size``, ``share_qk`` and ``qkv_bias`` of
            :class:`Attention`.

    Raises:
        TypeError: An argument is unknown; the choices are listed.
        ValueError: An argument is out of its range; choices are listed.
    """

    @list_choices(Attention)
    def __init__(
        self,
        dim: int,
        num_heads: int,
        kernel: str = 'laplacian',
        bandwidth: float | None = None,
        approximation: str = 'nystrom',
        landmark_grid: int = 7,
        landmark_source: str = 'query',
        landmark_pool: str = 'avg',
        solver: str = 'newton_schulz',
        num_iters: int | None = None,
        ridge: float = RIDGE,
        whitening: str = 'diagonal',
        centering: str = 'both',
        **projections,
    ):
        super().__init__(dim, num_heads, **projections)
        check_choice('kernel', kernel, KERNELS)
        check_choice('approximation', approximation, APPROXIMATIONS)
        check_choice('landmark_source', landmark_source, LANDMARK_SOURCES)
        check_choice('landmark_pool', landmark_pool, LANDMARK_POOLS)
        check_choice('solver', solver, SOLVERS)
        check_choice('whitening', whitening, WHITENINGS)
        check_choice('centering', centering, CENTERINGS)
        default_bandwidth = KERNELS[kernel].bandwidth
        if bandwidth is not None and default_bandwidth is None:
            raise ValueError(
                f'LaplacianAttention: kernel {kernel!r} has no bandwidth, '
                f'got {bandwidth}'
            )
        for name, value in dict(bandwidth=bandwidth, ridge=ridge).items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f'LaplacianAttention: {name} must be positive and finite, '
                    f'got {value}'
                )
        for name, value in dict(
            landmark_grid=landmark_grid, num_iters=num_iters
        ).items():
            if value is not None and value < 1:
                raise ValueError(
                    f'LaplacianAttention: {name} must be >= 1, got {value}'
                )
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.approximation = approximation
        self.landmark_grid = landmark_grid
        self.landmark_source = landmark_source
        #: The factor D^(-1/4) of q and k. A bandwidth is divided by it
        #: instead, which gives the same kernel without two copies.
        self.input_scale = (dim // num_heads) ** -0.25
        if default_bandwidth is not None:
            bandwidth = (bandwidth or default_bandwidth) / self.input_scale
            self.input_scale = 1.0
        self.kernel_cfg = dict(
            kernel=kernel,
            bandwidth=bandwidth,
            whitening=whitening,
            centering=centering,
        )
        self.solver_cfg = dict(solver=solver, num_iters=num_iters, ridge=ridge)
        uses_conv = approximation == 'nystrom' and landmark_pool == 'dwconv'
        self.landmark_conv = depthwise_conv(dim, 3) if uses_conv else None
        # Saved optimizers know parameters by position: `proj` comes last, as
        # in earlier checkpoints.
        self.proj = self._modules.pop('proj')

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Apply the attention alone; arguments as for :class:`Attention`.

        Returns:
            The result, (B, h, N, D), and the statistics of
            :func:`nystrom_attention` or :func:`dense_attention`.
        """
        is_exact = self._is_exact(hw)
        source = None if is_exact else self._landmark_tokens(q, k, hw)
        with full_precision(v.device.type):
            q, k, v = map(self.split_heads, (q, k, v))
            if self.input_scale != 1:
                q, k = q * self.input_scale, k * self.input_scale
            if is_exact:
                return dense_attention(q, k, v, **self.kernel_cfg)
            landmarks = pool_tokens(source, hw, self.landmark_grid)
            landmarks = self.split_heads(landmarks) * self.input_scale
            return nystrom_attention(
                q, k, v, landmarks, **self.kernel_cfg, **self.solver_cfg
            )

    def _landmark_tokens(
        self, q: Tensor, k: Tensor, hw: tuple[int, int]
    ) -> Tensor:
        """Tokens that landmarks are pooled from, (B, N, C)."""
        if self.landmark_source == 'mean':
            tokens = (q + k) / 2
        else:
            tokens = q if self.landmark_source == 'query' else k
        if self.landmark_conv is not None:
            tokens = to_tokens(self.landmark_conv(to_map(tokens, hw)))
        return tokens

    def _is_exact(self, hw: tuple[int, int]) -> bool:
        if self.approximation == 'exact':
            return True
        has_few_tokens = hw[0] * hw[1] <= self.landmark_grid**2
        return has_few_tokens and self.landmark_conv is None

    def multiply_adds(self, hw: tuple[int, int]) -> dict[str, int]:
        """Multiply-adds of the attention for one image, by formula.

        Args:
            hw: (H, W) of the token map.

        Returns:
            ``products``: kernel matrices times values, which the core count
            includes; ``distance``: one for each |x - y|; ``solver``: one
            Newton-Schulz inverse, whatever solver is used; ``pooling`` of
            landmarks; ``whitening``.
        """
        n, d = hw[0] * hw[1], self.dim // self.num_heads
        rows, columns = (min(self.landmark_grid, side) for side in hw)
        m = rows * columns
        if self._is_exact(hw):
            return dict(
                products=n * n * self.dim, distance=self._distances(n, n)
            )
        num_iters = self.solver_cfg['num_iters'] or default_num_iters(
            m, self.solver_cfg['ridge']
        )
        is_whitened = self.kernel_cfg['whitening'] == 'diagonal'
        whitening = (3 if is_whitened else 1) * n * m * m
        return dict(
            products=2 * n * m * d * self.num_heads,
            distance=2 * self._distances(n, m) + self._distances(m, m),
            solver=inverse_flops((self.num_heads, m, m), num_iters) // 2,
            pooling=(n + rows * hw[0]) * columns * self.dim,
            whitening=whitening * self.num_heads,
        )

    def _distances(self, n: int, m: int) -> int:
        d = self.dim // self.num_heads
        shapes = (self.num_heads, n, d), (self.num_heads, m, d)
        return kernel_flops(*shapes) // 2

    def extra_repr(self) -> str:
        switches = dict(
            num_heads=self.num_heads,
            approximation=self.approximation,
            landmark_grid=self.landmark_grid,
            landmark_source=self.landmark_source,
            **dict(self.kernel_cfg, bandwidth=self.bandwidth),
            **self.solver_cfg,
        )
        return ', '.join(f'{name}={value}' for name, value in switches.items())
