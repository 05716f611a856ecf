"""Laplacian kernel: formula, operator, CPU kernels and CUDA kernels."""

from .operator import flops, laplacian_kernel

__all__ = ['flops', 'laplacian_kernel']
