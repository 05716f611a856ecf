"""Newton-Schulz inverse: formula, operator, CPU kernels and CUDA kernels."""

from .operator import (
    INITS,
    RIDGE,
    default_num_iters,
    flops,
    newton_schulz_inverse,
)

__all__ = [
    'INITS',
    'RIDGE',
    'default_num_iters',
    'flops',
    'newton_schulz_inverse',
]
