"""Laplacian attention, linear in the number of tokens.

Letters: B images, h heads, N tokens, M landmarks, D head dimension, H x W
token map. The derivation is in ``cuda_ops/README.md``.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from cuda_ops import KERNELS, SOLVERS, accumulate_dtype
from cuda_ops.newton_schulz import default_num_iters

from .other_attentions import OTHER_ATTENTIONS

WHITENINGS = ('diagonal', 'none', 'row')
CENTERINGS = ('both', 'column')
APPROXIMATIONS = ('nystrom', 'exact')
LANDMARK_SOURCES = ('query', 'key', 'mean')
LANDMARK_POOLS = ('avg', 'dwconv')


def _check_choice(name: str, value, choices) -> None:
    if value not in choices:
        raise ValueError(
            f'{name} must be one of {sorted(choices)}, got {value!r}'
        )


def _unit_maximum(c: Tensor) -> Tensor:
    """Divide by one detached maximum per image and head.

    The whitened product does not change, and products of small kernel values
    no longer underflow. Values that are all below 1e-30 count as zero: their
    quotients have gradients that overflow.
    """
    largest = c.detach().abs().amax((-2, -1), keepdim=True)
    return c / largest.where(largest > 1e-30, 1)


def _eps(query_mean: Tensor) -> Tensor:
    """The scale-free eps of the whitening; (B, h, 1).

    Args:
        query_mean: mu_j before the row centring, (B, h, N).
    """
    return 1e-5 * query_mean.square().mean(-1, keepdim=True) + 1e-20


def _scale(variance: Tensor, eps: Tensor) -> Tensor:
    """``1 / (N sqrt(s_j^2 + eps))``; (B, h, N, 1).

    Args:
        variance: s_j^2, (B, h, N), one for each key.
        eps: (B, h, 1).
    """
    scale = (variance.clamp(min=0) + eps).rsqrt() / variance.shape[-1]
    return scale[..., None]


def _whitening(
    c_q: Tensor, c_k: Tensor, p_inverse: Tensor, centering: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factors and statistics of ``G = C_q P^-1 C_k^T``, never formed.

    Returns:
        C_q centred over the queries, (B, h, N, M); A with row j = a_j =
        P^-1 c_k,j, (B, h, N, M); s_j^2, (B, h, N); eps, (B, h, 1).
    """
    c_q, c_k = _unit_maximum(c_q), _unit_maximum(c_k)
    q_mean = c_q.mean(-2, keepdim=True)
    c_q = c_q - q_mean
    query_mean = (c_k @ (q_mean @ p_inverse).mT).squeeze(-1)
    if centering == 'both':
        c_k = c_k - c_k.mean(-2, keepdim=True)
    a = c_k @ p_inverse.mT
    covariance = c_q.mT @ c_q / c_q.shape[-2]
    variance = ((a @ covariance) * a).sum(-1)
    return c_q, a, variance, _eps(query_mean)


def _dense_whitening(
    g: Tensor, centering: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of a G that is at hand: G centred, s_j^2 and eps."""
    g = _unit_maximum(g)
    query_mean = g.mean(-2)
    if centering == 'both':
        g = g - g.mean(-1, keepdim=True)
    g = g - g.mean(-2, keepdim=True)
    return g, g.square().mean(-2), _eps(query_mean)


def whitened_product(
    c_q: Tensor,
    c_k: Tensor,
    p_inverse: Tensor,
    v: Tensor,
    *,
    whitening: str = 'diagonal',
    centering: str = 'both',
) -> Tensor:
    """``Z V`` for ``G = C_q P^-1 C_k^T``, the Nystrom form, never formed.

    Z is G centred over keys and queries, divided by N times each key's
    standard deviation over the queries, plus 1/N (paper Eq. 4-6; the factor
    1/N is ours). Centring G both ways equals centring both factors over the
    tokens, so time is O(N M^2 + N M D). Statistics are per image and head.

    Args:
        c_q: k(q, L), (B, h, N, M).
        c_k: k(k, L), (B, h, N, M).
        p_inverse: Inverse of the landmark matrix, (B, h, M, M).
        v: (B, h, N, D), same dtype as the rest.
        whitening: ``'diagonal'``; ``'none'``: G V; ``'row'``: G V divided by
            the row sums of G, clamped at 1e-4. Default: ``'diagonal'``.
        centering: ``'both'``, or ``'column'`` to leave out the mean over the
            keys. Only for ``'diagonal'``. Default: ``'both'``.

    Returns:
        (B, h, N, D).

    Raises:
        ValueError: ``whitening`` or ``centering`` is unknown.
    """
    _check_choice('whitening', whitening, WHITENINGS)
    _check_choice('centering', centering, CENTERINGS)
    if whitening != 'diagonal':
        keys = p_inverse @ c_k.mT
        out = c_q @ (keys @ v)
        if whitening == 'row':
            row_sum = c_q @ keys.sum(-1, keepdim=True)
            out = out / row_sum.clamp(min=1e-4)
        return out
    c_q, a, variance, eps = _whitening(c_q, c_k, p_inverse, centering)
    weighted = (a * _scale(variance, eps)).mT @ v
    return c_q @ weighted + v.mean(-2, keepdim=True)


def _dense_product(
    g: Tensor, v: Tensor, whitening: str, centering: str
) -> Tensor:
    """:func:`whitened_product` for a kernel matrix G that is at hand."""
    _check_choice('whitening', whitening, WHITENINGS)
    _check_choice('centering', centering, CENTERINGS)
    if whitening == 'none':
        return g @ v
    if whitening == 'row':
        return (g @ v) / g.sum(-1, keepdim=True).clamp(min=1e-4)
    g, variance, eps = _dense_whitening(g, centering)
    return g @ (_scale(variance, eps) * v) + v.mean(-2, keepdim=True)


def _nystrom_factors(
    q: Tensor,
    k: Tensor,
    landmarks: Tensor,
    kernel: str,
    bandwidth: float | None,
    solver: str,
    num_iters: int | None,
    ridge: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """C_q, C_k, the solver's matrix W and its result X, and P^-1.

    W counts in units of its largest diagonal entry where that is not 1, and
    then P^-1 is X in the kernel's own units.
    """
    row = KERNELS[kernel]
    if bandwidth is None:
        bandwidth = row.bandwidth
    if solver == 'newton_schulz' and not row.bounded:
        solver = 'cholesky'
    c_q = row.function(q, landmarks, bandwidth)
    c_k = row.function(k, landmarks, bandwidth)
    w = row.function(landmarks, landmarks, bandwidth)
    if row.bounded:
        x = SOLVERS[solver](w, num_iters=num_iters, ridge=ridge)
        return c_q, c_k, w, x, x
    largest = w.detach().diagonal(dim1=-2, dim2=-1).amax(-1)
    largest = largest.clamp(min=1e-20)[..., None, None]
    w = w / largest
    x = SOLVERS[solver](w, num_iters=num_iters, ridge=ridge)
    return c_q, c_k, w, x, x / largest


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    *,
    kernel: str = 'laplacian',
    bandwidth: float | None = None,
    solver: str = 'newton_schulz',
    num_iters: int | None = None,
    ridge: float = 0.01,
    whitening: str = 'diagonal',
    centering: str = 'both',
) -> Tensor:
    """Attention through M landmarks, linear in N.

    Args:
        q, k: (B, h, N, D), already scaled by D^(-1/4).
        v: (B, h, N, D).
        landmarks: (B, h, M, D), scaled like ``q``.
        kernel: A name in ``cuda_ops.KERNELS``. Default: ``'laplacian'``.
        bandwidth: Positive; None for the kernel's default. Default: None.
        solver: A name in ``cuda_ops.SOLVERS``. ``'newton_schulz'`` gives way
            to ``'cholesky'`` for kernels whose values leave [0, 1], where its
            iteration count would not hold. Default: ``'newton_schulz'``.
        num_iters: Iterations of the solver; None for its default.
        ridge: Added to the diagonal of the landmark matrix, in units of its
            largest diagonal entry, which is 1 for the bounded kernels.
            Default: 0.01.
        whitening, centering: See :func:`whitened_product`.

    Returns:
        (B, h, N, D).

    Raises:
        ValueError: A name is unknown; the choices are listed.
    """
    _check_choice('kernel', kernel, KERNELS)
    _check_choice('solver', solver, SOLVERS)
    c_q, c_k, _, _, p_inverse = _nystrom_factors(
        q, k, landmarks, kernel, bandwidth, solver, num_iters, ridge
    )
    return whitened_product(
        c_q, c_k, p_inverse, v, whitening=whitening, centering=centering
    )


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: str = 'laplacian',
    bandwidth: float | None = None,
    whitening: str = 'diagonal',
    centering: str = 'both',
) -> Tensor:
    """Attention with the exact kernel matrix: O(N^2) time and memory.

    Arguments, result and errors as for :func:`nystrom_attention`.
    """
    _check_choice('kernel', kernel, KERNELS)
    row = KERNELS[kernel]
    if bandwidth is None:
        bandwidth = row.bandwidth
    return _dense_product(
        row.function(q, k, bandwidth), v, whitening, centering
    )


def pool_tokens(x: Tensor, hw: tuple[int, int], grid: int) -> Tensor:
    """Average a token map onto a grid, as adaptive average pooling does.

    Two small products that read strided tokens where they are; the pooling
    operator would first transpose the whole map.

    Args:
        x: (B, N, C), tokens in row-major order.
        hw: (H, W), N = H * W.
        grid: Landmarks along each side; no more than H and W are taken.

    Returns:
        (B, M, C), M = min(grid, H) * min(grid, W), float32, or float64 for
        float64.
    """
    height, width = hw
    batch, channels = x.shape[0], x.shape[-1]
    x = x.to(accumulate_dtype(x.dtype)).unflatten(1, (height, width))
    rows, columns = (_averages(size, grid, x) for size in (height, width))
    x = torch.bmm(
        columns.expand(batch * height, *columns.shape), x.flatten(0, 1)
    )
    x = x.reshape(batch, height, columns.shape[0] * channels)
    x = torch.bmm(rows.expand(batch, *rows.shape), x)
    return x.reshape(batch, rows.shape[0] * columns.shape[0], channels)


def _averages(size: int, grid: int, like: Tensor) -> Tensor:
    """(min(grid, size), size): row i averages the i-th adaptive window."""
    grid = min(grid, size)
    cell = torch.arange(grid, device=like.device)[:, None]
    start, end = cell * size // grid, -(-(cell + 1) * size // grid)
    place = torch.arange(size, device=like.device)
    inside = (place >= start) & (place < end)
    return inside.to(like.dtype) / (end - start)


def _full_precision(device_type: str):
    """Switch autocast off where the device has it."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


class LaplacianAttention(nn.Module):
    """Multi-head attention with a whitened Laplacian kernel.

    ``proj(Z V + DWC(V))`` of LaplacianFormer (arXiv 2604.20368, Eq. 4-6 and
    its Nystrom form): q and k scaled by D^(-1/4) as in SOFT (so bandwidth 4
    is 4 D^(1/4) on unscaled q and k), landmarks pooled from the map onto a
    fixed grid, and a depthwise convolution of V beside it. Everything from
    the distances to ``Z V`` runs in float32 (float64 for float64 inputs)
    under any autocast. No image depends on another one of its batch.

    Where the map has no more tokens than the landmark grid has cells, the
    exact kernel takes the place of its Nystrom form (not with
    ``landmark_pool='dwconv'``, whose weights would be left without a
    gradient).

    Args:
        dim: Channels C, a multiple of ``num_heads``.
        num_heads: Heads h; D = C / h.
        kernel: A name in ``cuda_ops.KERNELS``, or in ``OTHER_ATTENTIONS``:
            ``'softmax'``, ``'inline'`` and ``'rala'`` take the place of
            kernel, landmarks and whitening, and the switches for these then
            do nothing; ``'rala'`` adds one projection, its gate.
            Default: ``'laplacian'``.
        bandwidth: Positive; None for the kernel's default. Default: None.
        approximation: ``'nystrom'``, or ``'exact'`` for the dense kernel
            matrix (quadratic). Default: ``'nystrom'``.
        landmark_grid: Landmarks along each side, >= 1. Default: 7 (M = 49).
        landmark_source: Map that is pooled: ``'query'``, ``'key'`` or
            ``'mean'`` of both. Default: ``'query'``.
        landmark_pool: ``'avg'``, or ``'dwconv'`` for a depthwise 3x3
            convolution before the averages. Default: ``'avg'``.
        solver, num_iters, ridge: See :func:`nystrom_attention`.
        whitening, centering: See :func:`whitened_product`.
        local_kernel_size: Odd side of the depthwise convolution of V; 0
            leaves it out. Default: 3.
        share_qk: One projection for q and k, as in SOFT. Default: False.
        qkv_bias: Bias of the first projection. Default: True.

    Raises:
        ValueError: An argument is out of its range; choices are listed.
    """

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
        ridge: float = 0.01,
        whitening: str = 'diagonal',
        centering: str = 'both',
        local_kernel_size: int = 3,
        share_qk: bool = False,
        qkv_bias: bool = True,
    ):
        super().__init__()
        _check_choice('kernel', kernel, [*KERNELS, *OTHER_ATTENTIONS])
        _check_choice('approximation', approximation, APPROXIMATIONS)
        _check_choice('landmark_source', landmark_source, LANDMARK_SOURCES)
        _check_choice('landmark_pool', landmark_pool, LANDMARK_POOLS)
        _check_choice('solver', solver, SOLVERS)
        _check_choice('whitening', whitening, WHITENINGS)
        _check_choice('centering', centering, CENTERINGS)
        if dim < 1 or num_heads < 1 or dim % num_heads:
            raise ValueError(
                'LaplacianAttention: dim must be a positive multiple of '
                f'num_heads, got dim={dim}, num_heads={num_heads}'
            )
        if landmark_grid < 1:
            raise ValueError(
                'LaplacianAttention: landmark_grid must be >= 1, '
                f'got {landmark_grid}'
            )
        for name, value in dict(bandwidth=bandwidth, ridge=ridge).items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f'LaplacianAttention: {name} must be positive and finite, '
                    f'got {value}'
                )
        other = OTHER_ATTENTIONS.get(kernel)
        if bandwidth is not None and (
            other or KERNELS[kernel].bandwidth is None
        ):
            raise ValueError(
                f'LaplacianAttention: kernel {kernel!r} has no bandwidth, '
                f'got {bandwidth}'
            )
        if num_iters is not None and num_iters < 1:
            raise ValueError(
                f'LaplacianAttention: num_iters must be >= 1, got {num_iters}'
            )
        if local_kernel_size < 0 or (
            local_kernel_size and (local_kernel_size % 2 == 0)
        ):
            raise ValueError(
                'LaplacianAttention: local_kernel_size must be odd, or 0 for '
                f'no convolution, got {local_kernel_size}'
            )
        self.dim = dim
        self.num_heads = num_heads
        self.kernel = kernel
        self.approximation = approximation
        self.landmark_grid = landmark_grid
        self.landmark_source = landmark_source
        self.bandwidth = bandwidth
        #: D^(-1/4), that q and k are multiplied by. A bandwidth is divided by
        #: it instead, which gives the same kernel without two copies.
        self.input_scale = (dim // num_heads) ** -0.25
        if not other and KERNELS[kernel].bandwidth is not None:
            bandwidth = (bandwidth or KERNELS[kernel].bandwidth) / (
                self.input_scale
            )
            self.input_scale = 1.0
        self.kernel_cfg = dict(
            kernel=kernel,
            bandwidth=bandwidth,
            whitening=whitening,
            centering=centering,
        )
        self.solver_cfg = dict(solver=solver, num_iters=num_iters, ridge=ridge)
        self.other = other
        self.num_parts = (2 if share_qk else 3) + bool(other and other.gated)
        self.qkv = nn.Linear(dim, self.num_parts * dim, bias=qkv_bias)
        self.local_conv = (
            nn.Conv2d(
                dim,
                dim,
                local_kernel_size,
                padding=local_kernel_size // 2,
                groups=dim,
            )
            if local_kernel_size
            else None
        )
        uses_landmarks = not other and approximation == 'nystrom'
        self.landmark_conv = (
            nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
            if uses_landmarks and landmark_pool == 'dwconv'
            else None
        )
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Mix the tokens of each image.

        Args:
            x: (B, N, C), tokens in row-major order.
            hw: (H, W) of the token map, N = H * W.

        Returns:
            (B, N, C) in the dtype of the projections.

        Raises:
            ValueError: N is not H * W.
        """
        num_tokens = x.shape[1]
        if num_tokens != hw[0] * hw[1]:
            raise ValueError(
                'LaplacianAttention: x must hold H * W tokens, '
                f'got {num_tokens} tokens and hw={tuple(hw)}'
            )
        q, k, v, gate = self._project(x)
        out = self._mix(q, k, v, hw).to(v.dtype).transpose(1, 2)
        if self.local_conv is not None:
            local = _to_tokens(self.local_conv(_to_map(v, hw)))
            # Its memory is in the order of the tokens: the sum's is too.
            out = local.unflatten(-1, out.shape[-2:]) + out
        out = out.flatten(2)
        return self.proj(out if gate is None else out * gate)

    def intermediates(
        self, x: Tensor, hw: tuple[int, int]
    ) -> dict[str, Tensor]:
        """What :meth:`forward` computes on its way, for diagnostics.

        Args:
            x: (B, N, C), tokens in row-major order.
            hw: (H, W) of the token map, N = H * W.

        Returns:
            By name, without those that the layer has no use for:
            ``w``: landmark matrix W as the solver gets it, (B, h, M, M), in
            units of its largest diagonal entry;
            ``inverse``: what the solver returns for P = W + ridge I;
            ``variance``: s_j^2 of the whitening, (B, h, N);
            ``eps``: what is added to it, (B, h, 1).
        """
        if self.other:
            return {}
        q, k, _, _ = self._project(x)
        source = self._landmark_source(q, k, hw)
        bandwidth = self.kernel_cfg['bandwidth']
        centering = self.kernel_cfg['centering']
        found = {}
        with _full_precision(x.device.type):
            q, k, landmarks = self._points(q, k, source, hw)
            if landmarks is None:
                g = KERNELS[self.kernel].function(q, k, bandwidth)
                statistics = _dense_whitening(g, centering)
            else:
                c_q, c_k, w, inverse, p_inverse = _nystrom_factors(
                    *(q, k, landmarks, self.kernel, bandwidth),
                    **self.solver_cfg,
                )
                found.update(w=w, inverse=inverse)
                statistics = _whitening(c_q, c_k, p_inverse, centering)
        if self.kernel_cfg['whitening'] == 'diagonal':
            found.update(variance=statistics[-2], eps=statistics[-1])
        return found

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v and the gate or None, (B, N, C) each."""
        parts = list(self.qkv(x).chunk(self.num_parts, dim=-1))
        gate = parts.pop() if self.other and self.other.gated else None
        return parts[0], parts[-2], parts[-1], gate

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, hw) -> Tensor:
        """Attention alone: (B, N, C) each, to (B, h, N, D)."""
        source = self._landmark_source(q, k, hw)
        with _full_precision(v.device.type):
            v = self._heads(v)
            if self.other:
                return self.other.function(self._heads(q), self._heads(k), v)
            q, k, landmarks = self._points(q, k, source, hw)
            if landmarks is None:
                return dense_attention(q, k, v, **self.kernel_cfg)
            return nystrom_attention(
                q, k, v, landmarks, **self.kernel_cfg, **self.solver_cfg
            )

    def _points(
        self, q: Tensor, k: Tensor, source: Tensor | None, hw
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the kernel compares: q, k and landmarks, (B, h, N or M, D)."""
        q, k = self._heads(q), self._heads(k)
        if self.input_scale != 1:
            q, k = q * self.input_scale, k * self.input_scale
        if source is None:
            return q, k, None
        landmarks = self._heads(pool_tokens(source, hw, self.landmark_grid))
        return q, k, landmarks * self.input_scale

    def _landmark_source(self, q: Tensor, k: Tensor, hw) -> Tensor | None:
        """Tokens to pool landmarks from, (B, N, C); None for no landmarks."""
        if self.other or self._is_exact(hw):
            return None
        if self.landmark_source == 'mean':
            source = (q + k) / 2
        else:
            source = q if self.landmark_source == 'query' else k
        if self.landmark_conv is not None:
            source = _to_tokens(self.landmark_conv(_to_map(source, hw)))
        return source

    def _is_exact(self, hw) -> bool:
        few = hw[0] * hw[1] <= self.landmark_grid**2
        return self.approximation == 'exact' or (
            few and self.landmark_conv is None
        )

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, h, N, D) in the dtype of the computation."""
        x = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return x.to(accumulate_dtype(x.dtype))

    def multiply_adds(self, hw: tuple[int, int]) -> dict[str, int]:
        """Multiply-adds of the mixing of one image, by formula.

        Args:
            hw: (H, W) of the token map.

        Returns:
            ``products``: kernel matrices times values, the part that belongs
            to the core count; beside it ``distance`` (one for each |x - y|),
            ``solver`` (as one Newton-Schulz inverse, whatever solver is
            used), ``pooling`` (of landmarks) and ``whitening``. Projections
            and convolutions are not in.
        """
        n = hw[0] * hw[1]
        dim, heads = self.dim, self.num_heads
        rows, columns = (min(self.landmark_grid, side) for side in hw)
        m = rows * columns
        if self.other:
            width = dim // heads if self.other.linear else n
            return dict(products=2 * n * width * dim)
        if self._is_exact(hw):
            return dict(products=n * n * dim, distance=n * n * dim)
        whitened = self.kernel_cfg['whitening'] == 'diagonal'
        num_iters = self.solver_cfg['num_iters'] or default_num_iters(
            m, self.solver_cfg['ridge']
        )
        return dict(
            products=2 * n * m * dim,
            distance=(2 * n * m + m * m) * dim,
            solver=2 * m**3 * num_iters * heads,
            pooling=(n + rows * hw[0]) * columns * dim,
            whitening=(3 if whitened else 1) * n * m * m * heads,
        )

    def extra_repr(self) -> str:
        if self.other:
            return f'num_heads={self.num_heads}, kernel={self.kernel}'
        return ', '.join(
            f'{name}={value}'
            for name, value in dict(
                num_heads=self.num_heads,
                approximation=self.approximation,
                landmark_grid=self.landmark_grid,
                landmark_source=self.landmark_source,
                **dict(self.kernel_cfg, bandwidth=self.bandwidth),
                **self.solver_cfg,
            ).items()
        )


def _to_map(x: Tensor, hw) -> Tensor:
    """(B, N, C) tokens to a (B, C, H, W) map in channels-last memory.

    Convolutions read a slice of a projection by a far slower path.
    """
    x = x.transpose(1, 2).unflatten(-1, tuple(hw))
    return x.contiguous(memory_format=torch.channels_last)


def _to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) to (B, N, C) tokens."""
    return x.flatten(2).transpose(1, 2)
