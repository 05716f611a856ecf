"""Newton-Schulz inverse in plain PyTorch, against which kernels are tested."""

import torch
from torch import Tensor

from ..common.library import accumulate_dtype


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
    # A transposed start has transposed strides.
    return x.to(matrix.dtype).contiguous()


def newton_schulz_inverse_backward(grad: Tensor, inverse: Tensor) -> Tensor:
    """Implicit gradient ``-X^T G X^T`` of the inverse."""
    dtype = accumulate_dtype(inverse.dtype)
    x_t = inverse.to(dtype).mT
    return -(x_t @ grad.to(dtype) @ x_t).to(inverse.dtype)
