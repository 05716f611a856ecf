"""Laplacian kernel in plain PyTorch, against which faster code is tested.

Shapes use the letters N tokens, M landmarks and D head dimension.
"""

import torch
from torch import Tensor

from ..common.library import accumulate_dtype

#: Largest number of (n, m, d) triples that PyTorch's distance gradient may
#: hold at a time, on devices where it holds them: 64 MB in float32.
MAX_TRIPLES = 2**24
DEVICES_WITHOUT_TRIPLES = ('cpu', 'meta')


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
    # PyTorch's distance gradient for the L1 norm is this sum. It reads the
    # distances for other norms only, so the weights stand in for them.
    rows = x.shape[1]
    if x.device.type not in DEVICES_WITHOUT_TRIPLES:
        rows = max(MAX_TRIPLES // (len(x) * y.shape[1] * y.shape[2]), 1)
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
