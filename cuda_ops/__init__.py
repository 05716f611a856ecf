"""Operators of the Laplacian attention, on torch alone."""

from . import cuda_kernels as cuda_kernels
from ._library import accumulate_dtype
from .common.compiled import COMPILED
from .decompositions import decompositions
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
    'laplacian_kernel',
    'newton_schulz_inverse',
]
