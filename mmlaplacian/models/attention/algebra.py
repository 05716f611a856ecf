"""The algebra of Laplacian attention, in the order of its derivation.

Letters: B images, h heads, N tokens, M landmarks, D head dimension, H x W
token map. ``cuda_ops/README.md`` derives every step.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cuda_ops import KERNELS, SOLVERS, accumulate_dtype

from ..arguments import check_choice

WHITENINGS = ('diagonal', 'none', 'row')
CENTERINGS = ('both', 'column')
#: Smallest row sum that ``whitening='row'`` divides by.
SMALLEST_ROW_SUM = 1e-4


def pool_tokens(x: Tensor, hw: tuple[int, int], grid: int) -> Tensor:
    """Average a token map onto a grid, as adaptive average pooling does.

    Two small matrix products read strided tokens in place; the pooling
    operator would transpose the whole map first.

    Args:
        x: (B, N, C), tokens in row-major order.
        hw: (H, W), N = H * W.
        grid: Landmarks along each side, limited to H and W.

    Returns:
        (B, M, C), M = min(grid, H) * min(grid, W), float32, or float64 for
        float64.
    """
    height, width = hw
    batch, channels = x.shape[0], x.shape[-1]
    x = x.to(accumulate_dtype(x.dtype)).unflatten(1, (height, width))
    rows, columns = (
        _pooling_matrix(size, grid, x) for size in (height, width)
    )
    x = torch.bmm(
        columns.expand(batch * height, *columns.shape), x.flatten(0, 1)
    )
    x = x.reshape(batch, height, columns.shape[0] * channels)
    x = torch.bmm(rows.expand(batch, *rows.shape), x)
    return x.reshape(batch, rows.shape[0] * columns.shape[0], channels)


def _pooling_matrix(size: int, grid: int, like: Tensor) -> Tensor:
    """(min(grid, size), size): row i averages the i-th adaptive window."""
    grid = min(grid, size)
    cell = torch.arange(grid, device=like.device)[:, None]
    start, end = cell * size // grid, -(-(cell + 1) * size // grid)
    place = torch.arange(size, device=like.device)
    inside = (place >= start) & (place < end)
    return inside.to(like.dtype) / (end - start)


class NystromFactors(NamedTuple):
    """Factors of ``G = C_q P^-1 C_k^T``, which is never formed.

    Attributes:
        c_q: k(q, L), (B, h, N, M).
        c_k: k(k, L), (B, h, N, M).
        w: The solver's matrix W, (B, h, M, M): k(L, L) in units of its
            largest diagonal entry.
        inverse: The solver's result for W + ridge I.
        p_inverse: P^-1, the result in the units of the kernel.
    """

    c_q: Tensor
    c_k: Tensor
    w: Tensor
    inverse: Tensor
    p_inverse: Tensor


def nystrom_factors(
    q: Tensor,
    k: Tensor,
    landmarks: Tensor,
    *,
    kernel: str,
    bandwidth: float | None,
    solver: str,
    num_iters: int | None,
    ridge: float,
) -> NystromFactors:
    """Compute the factors; arguments as for :func:`nystrom_attention`."""
    check_choice('kernel', kernel, KERNELS)
    check_choice('solver', solver, SOLVERS)
    function = KERNELS[kernel]
    c_q = function(q, landmarks, bandwidth)
    c_k = function(k, landmarks, bandwidth)
    w = function(landmarks, landmarks, bandwidth)
    if function.bounded:
        inverse = SOLVERS[solver](w, num_iters=num_iters, ridge=ridge)
        return NystromFactors(c_q, c_k, w, inverse, inverse)
    if solver == 'newton_schulz':
        # Its iteration count holds for kernel values in [0, 1] only.
        solver = 'cholesky'
    largest = w.detach().diagonal(dim1=-2, dim2=-1).amax(-1)
    largest = largest.clamp(min=1e-20)[..., None, None]
    w = w / largest
    inverse = SOLVERS[solver](w, num_iters=num_iters, ridge=ridge)
    return NystromFactors(c_q, c_k, w, inverse, inverse / largest)


def _unit_maximum(c: Tensor) -> Tensor:
    """Divide by one detached maximum per image and head.

    The factor cancels in the whitened product and keeps products of small
    kernel values from underflowing. Values that are all below 1e-30 count as
    zero, because the gradients of their quotients overflow.
    """
    largest = c.detach().abs().amax((-2, -1), keepdim=True)
    return c / largest.where(largest > 1e-30, 1)


def _eps(query_mean: Tensor) -> Tensor:
    """Scale-free eps of the whitening, (B, h, 1).

    Args:
        query_mean: mu_j before the rows are centred, (B, h, N).
    """
    return 1e-5 * query_mean.square().mean(-1, keepdim=True) + 1e-20


def _scale(variance: Tensor, eps: Tensor) -> Tensor:
    """``1 / (N sqrt(s_j^2 + eps))``, (B, h, N, 1).

    Args:
        variance: s_j^2 of each key, (B, h, N).
        eps: (B, h, 1).
    """
    scale = (variance.clamp(min=0) + eps).rsqrt() / variance.shape[-1]
    return scale[..., None]


def whitened_product(
    c_q: Tensor,
    c_k: Tensor,
    p_inverse: Tensor,
    v: Tensor,
    *,
    whitening: str,
    centering: str,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute ``Z V`` for ``G = C_q P^-1 C_k^T`` without forming G.

    Z is G centred over keys and queries, divided by N times each key's
    standard deviation over the queries, plus 1/N (paper Eq. 4-6; the factor
    1/N is ours). Centring G both ways equals centring both factors over the
    tokens, so time is O(N M^2 + N M D). Statistics are per image and head.

    Args:
        c_q: k(q, L), (B, h, N, M).
        c_k: k(k, L), (B, h, N, M).
        p_inverse: Inverse of the landmark matrix, (B, h, M, M).
        v: (B, h, N, D), same dtype as the other tensors.
        whitening: ``'diagonal'``; ``'none'`` for G V; ``'row'`` for G V
            divided by the row sums of G, clamped at 1e-4.
        centering: ``'both'``, or ``'column'`` to leave out the mean over the
            keys. Used by ``whitening='diagonal'`` only.

    Returns:
        The product, (B, h, N, D), and the whitening's statistics:
        ``variance``, s_j^2, (B, h, N), and ``eps``, (B, h, 1). Without
        diagonal whitening there are no statistics.

    Raises:
        ValueError: ``whitening`` or ``centering`` is unknown.
    """
    check_choice('whitening', whitening, WHITENINGS)
    check_choice('centering', centering, CENTERINGS)
    if whitening != 'diagonal':
        keys = p_inverse @ c_k.mT
        out = c_q @ (keys @ v)
        if whitening == 'row':
            row_sum = c_q @ keys.sum(-1, keepdim=True)
            out = out / row_sum.clamp(min=SMALLEST_ROW_SUM)
        return out, {}
    c_q, c_k = _unit_maximum(c_q), _unit_maximum(c_k)
    q_mean = c_q.mean(-2, keepdim=True)
    c_q = c_q - q_mean
    query_mean = (c_k @ (q_mean @ p_inverse).mT).squeeze(-1)
    if centering == 'both':
        c_k = c_k - c_k.mean(-2, keepdim=True)
    # Row j is a_j = P^-1 c_k,j, and s_j^2 = a_j^T Cov(C_q) a_j.
    a = c_k @ p_inverse.mT
    covariance = c_q.mT @ c_q / c_q.shape[-2]
    variance = ((a @ covariance) * a).sum(-1)
    eps = _eps(query_mean)
    weighted = (a * _scale(variance, eps)).mT @ v
    out = c_q @ weighted + v.mean(-2, keepdim=True)
    return out, dict(variance=variance, eps=eps)


def dense_product(
    g: Tensor, v: Tensor, *, whitening: str, centering: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute :func:`whitened_product` from the kernel matrix G itself.

    Args:
        g: (B, h, N, N).
        v, whitening, centering: See :func:`whitened_product`.
    """
    check_choice('whitening', whitening, WHITENINGS)
    check_choice('centering', centering, CENTERINGS)
    if whitening == 'none':
        return g @ v, {}
    if whitening == 'row':
        row_sum = g.sum(-1, keepdim=True)
        return (g @ v) / row_sum.clamp(min=SMALLEST_ROW_SUM), {}
    g = _unit_maximum(g)
    query_mean = g.mean(-2)
    if centering == 'both':
        g = g - g.mean(-1, keepdim=True)
    g = g - g.mean(-2, keepdim=True)
    variance, eps = g.square().mean(-2), _eps(query_mean)
    out = g @ (_scale(variance, eps) * v) + v.mean(-2, keepdim=True)
    return out, dict(variance=variance, eps=eps)


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    *,
    kernel: str,
    bandwidth: float | None,
    solver: str,
    num_iters: int | None,
    ridge: float,
    whitening: str,
    centering: str,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Attend through M landmarks, linear in N.

    Args:
        q, k: (B, h, N, D), already scaled by D^(-1/4).
        v: (B, h, N, D).
        landmarks: (B, h, M, D), scaled like ``q``.
        kernel: A name in ``cuda_ops.KERNELS``.
        bandwidth: Positive; None for the kernel's default.
        solver: A name in ``cuda_ops.SOLVERS``. Kernels whose values leave
            [0, 1] use ``'cholesky'`` instead of ``'newton_schulz'``.
        num_iters: Iterations of the solver; None for its default.
        ridge: Added to the diagonal of the landmark matrix, in units of its
            largest diagonal entry, which is 1 for the bounded kernels.
        whitening, centering: See :func:`whitened_product`.

    Returns:
        The result, (B, h, N, D), and the statistics: ``w`` and ``inverse``
        of :class:`NystromFactors`, and those of :func:`whitened_product`.

    Raises:
        ValueError: A name is unknown; the choices are listed.
    """
    factors = nystrom_factors(
        q,
        k,
        landmarks,
        kernel=kernel,
        bandwidth=bandwidth,
        solver=solver,
        num_iters=num_iters,
        ridge=ridge,
    )
    out, statistics = whitened_product(
        factors.c_q,
        factors.c_k,
        factors.p_inverse,
        v,
        whitening=whitening,
        centering=centering,
    )
    return out, dict(w=factors.w, inverse=factors.inverse, **statistics)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: str,
    bandwidth: float | None,
    whitening: str,
    centering: str,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Attend with the exact kernel matrix: O(N^2) time and memory.

    Arguments, result and errors are those of :func:`nystrom_attention`.
    """
    check_choice('kernel', kernel, KERNELS)
    g = KERNELS[kernel](q, k, bandwidth)
    return dense_product(g, v, whitening=whitening, centering=centering)
