"""Operators of the Laplacian attention: plain PyTorch, torch only."""

from . import cuda_kernels as cuda_kernels
from ._library import accumulate_dtype
from .kernels import KERNELS, Kernel
from .laplacian_kernel import laplacian_kernel
from .newton_schulz import newton_schulz_inverse
from .solvers import SOLVERS

__all__ = [
    'KERNELS',
    'SOLVERS',
    'Kernel',
    'accumulate_dtype',
    'laplacian_kernel',
    'newton_schulz_inverse',
]
