"""Operators of the Laplacian attention, which need PyTorch only.

Each operator has a folder; ``common`` holds what the operators share.
"""

from .common.compiled import COMPILED
from .common.dispatch import fallback_reason
from .common.library import accumulate_dtype, decompositions
from .kernels import KERNELS, Kernel
from .laplacian_kernel import laplacian_kernel
from .newton_schulz import RIDGE, newton_schulz_inverse
from .solvers import SOLVERS

__all__ = [
    'COMPILED',
    'KERNELS',
    'RIDGE',
    'SOLVERS',
    'Kernel',
    'accumulate_dtype',
    'decompositions',
    'fallback_reason',
    'laplacian_kernel',
    'newton_schulz_inverse',
]
