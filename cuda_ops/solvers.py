"""Solvers that invert the landmark matrix, with one calling convention.

``solver(matrix, num_iters=None, ridge=RIDGE) -> X``. ``matrix`` is (..., M,
M), symmetric positive semi-definite, and ``X`` is the inverse of ``matrix +
ridge * I`` with the same shape and dtype.
"""

import torch
from torch import Tensor

from .newton_schulz import RIDGE, newton_schulz_inverse


def _regularised(matrix: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    identity = torch.eye(
        matrix.shape[-1], dtype=matrix.dtype, device=matrix.device
    )
    return matrix + ridge * identity, identity


def cholesky_inverse(
    matrix: Tensor, num_iters: int | None = None, ridge: float = RIDGE
) -> Tensor:
    """Exact inverse by a Cholesky factorisation; ``num_iters`` is unused.

    Raises:
        ValueError: ``matrix + ridge * I`` is not positive definite.
    """
    p, _ = _regularised(matrix, ridge)
    try:
        return torch.cholesky_inverse(torch.linalg.cholesky(p))
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            'cholesky_inverse: matrix + ridge * I is not positive definite '
            f'(ridge={ridge}); use a larger ridge, or look for NaN in the '
            f'input ({error})'
        ) from error


def conjugate_gradient_inverse(
    matrix: Tensor, num_iters: int | None = 20, ridge: float = RIDGE
) -> Tensor:
    """Inverse by a fixed number of conjugate-gradient steps per column.

    ``num_iters=None`` means 20. The gradient is that of the exact inverse,
    ``-X^T G X^T``, as for Newton-Schulz.
    """
    p, identity = _regularised(matrix, ridge)
    with torch.no_grad():
        x = torch.zeros_like(p)
        residual = identity.expand(p.shape).clone()
        direction = residual.clone()
        square = residual.square().sum(-2, keepdim=True)
        tiny = torch.finfo(p.dtype).tiny
        for _ in range(20 if num_iters is None else num_iters):
            p_direction = p @ direction
            curvature = (direction * p_direction).sum(-2, keepdim=True)
            # A converged column divides 0 by the smallest number, and stays
            # as it is.
            step = square / curvature.clamp(min=tiny)
            x = x + step * direction
            residual = residual - step * p_direction
            new_square = residual.square().sum(-2, keepdim=True)
            direction = (
                residual + new_square / square.clamp(min=tiny) * direction
            )
            square = new_square
    # Adds zero to the value, and the implicit gradient.
    return x - x @ (p - p.detach()) @ x


def pseudo_inverse(
    matrix: Tensor, num_iters: int | None = None, ridge: float = RIDGE
) -> Tensor:
    """Moore-Penrose inverse; ``num_iters`` is unused."""
    p, _ = _regularised(matrix, ridge)
    return torch.linalg.pinv(p, hermitian=True)


SOLVERS = {
    'newton_schulz': newton_schulz_inverse,
    'cholesky': cholesky_inverse,
    'cg': conjugate_gradient_inverse,
    'pinv': pseudo_inverse,
}
