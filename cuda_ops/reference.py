"""The operators in plain PyTorch: what every faster path is tested against.

Both formulas and both gradients stand here and nowhere else. Shapes use the
project's letters: N tokens, M landmarks, D head dimension.
"""

import torch
from torch import Tensor

from ._library import accumulate_dtype

#: Largest number of (n, m, d) triples that a gradient holds at a time, on
#: devices where PyTorch's distance gradient holds them: 64 MB in float32.
MOST_PAIRS = 2**24
HOLDS_NO_TRIPLES = ('cpu', 'meta')


def laplacian_kernel(x: Tensor, y: Tensor, bandwidth: float) -> Tensor:
    """``K[n, m] = exp(-sum_d |x[n, d] - y[m, d]| / bandwidth)``."""
    dtype = accumulate_dtype(x.dtype)
    distance = torch.cdist(x.to(dtype), y.to(dtype), p=1)
    return torch.exp(distance / -bandwidth).to(x.dtype)


def laplacian_kernel_backward(
    grad: Tensor, x: Tensor, y: Tensor, kernel: Tensor, bandwidth: float
) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`laplacian_kernel` for ``x`` and ``y``.

    ``grad_x[n, d] = sum_m w[n, m] sign(x[n, d] - y[m, d])`` and
    ``grad_y[m, d] = -sum_n w[n, m] sign(x[n, d] - y[m, d])`` with
    ``w = -grad * K / bandwidth`` and sign(0) = 0.
    """
    dtype = accumulate_dtype(x.dtype)
    weight = grad.to(dtype) * kernel.to(dtype) / -bandwidth
    grad_x = _signed_sum(weight, x.to(dtype), y.to(dtype))
    grad_y = _signed_sum(weight.mT, y.to(dtype), x.to(dtype))
    return grad_x.to(x.dtype), grad_y.to(y.dtype)


def _signed_sum(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``sum_m weight[n, m] sign(x[n, d] - y[m, d])`` without N x M x D."""
    if weight.numel() == 0 or x.shape[-1] == 0:
        return torch.zeros_like(x)
    batch = x.shape[:-2]
    weight, x, y = (t.reshape(-1, *t.shape[-2:]) for t in (weight, x, y))
    weight, x, y = weight.contiguous(), x.contiguous(), y.contiguous()
    # The L1 case of PyTorch's own distance gradient is this very sum; it
    # reads the distances (here: weight again) only for other norms.
    rows = x.shape[1]
    if x.device.type not in HOLDS_NO_TRIPLES:
        rows = max(MOST_PAIRS // (len(x) * y.shape[1] * y.shape[2]), 1)
    total = torch.cat(
        [
            torch.ops.aten._cdist_backward(w, part, y, 1.0, w)
            for w, part in zip(
                weight.split(rows, 1), x.split(rows, 1), strict=True
            )
        ],
        1,
    )
    return total.reshape(*batch, *total.shape[-2:])


def newton_schulz_inverse(
    matrix: Tensor, num_iters: int, ridge: float, init: str
) -> Tensor:
    """``X <- X (2I - P X)`` with ``P = matrix + ridge * I``."""
    dtype = accumulate_dtype(matrix.dtype)
    identity = torch.eye(
        matrix.shape[-1], dtype=dtype, device=matrix.device
    ).expand(matrix.shape)
    p = matrix.to(dtype) + ridge * identity
    row_sum = p.abs().sum(-1).amax(-1)[..., None, None]
    if init == 'identity':
        x = identity / row_sum
    else:
        x = 1.8 / row_sum**2 * p.mT
    for _ in range(num_iters):
        x = 2 * x - x @ (p @ x)
    return x.to(matrix.dtype)


def newton_schulz_inverse_backward(grad: Tensor, inverse: Tensor) -> Tensor:
    """Implicit gradient ``-X^T G X^T`` of the inverse."""
    dtype = accumulate_dtype(inverse.dtype)
    x_t = inverse.to(dtype).mT
    return -(x_t @ grad.to(dtype) @ x_t).to(inverse.dtype)
