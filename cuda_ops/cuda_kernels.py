"""The operators on CUDA: kernels where they can, else the reference.

The reference is used for float64, for empty tensors, for matrices of the
solver above 128 x 128 (or above the shared memory of a GPU: 108 with 99 KB,
88 with 64 KB), and where :mod:`cuda_runtime` cannot work, which warns once.
"""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from . import cuda_launch, cuda_runtime, reference
from ._library import LIBRARY

#: Which path a device takes, and why.
status = cuda_runtime.status


def laplacian_kernel(x: Tensor, y: Tensor, bandwidth: float, launch) -> Tensor:
    """Launch the forward kernel; reference arguments and a launcher."""
    out = x.new_empty(*x.shape[:-1], y.shape[-2])
    x, y = map(cuda_launch.four_axes, (x, y))
    launch(cuda_launch.laplacian_forward(x, y, out, bandwidth))
    return out


def laplacian_kernel_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    kernel: Tensor,
    bandwidth: float,
    launch,
) -> tuple[Tensor, Tensor]:
    """Launch the backward kernels: both gradients, reproducible to the bit."""
    grad_x, grad_y = x.new_empty(x.shape), y.new_empty(y.shape)
    grad, x, y, kernel = map(cuda_launch.four_axes, (grad, x, y, kernel))
    _, splits = cuda_launch.backward_splits(x, y)
    partial = x.new_empty(
        (x.shape[0] * x.shape[1], splits, *y.shape[2:]), dtype=torch.float32
    )
    launch(
        cuda_launch.laplacian_backward(
            grad, x, y, kernel, grad_x, partial, bandwidth
        )
    )
    launch(cuda_launch.laplacian_reduce(partial, grad_y))
    return grad_x, grad_y


def newton_schulz_inverse(
    matrix: Tensor, num_iters: int, ridge: float, init: str, launch
) -> Tensor:
    """Launch the inverse; arguments of the reference, and a launcher."""
    out = matrix.new_empty(matrix.shape)
    plan = cuda_launch.newton_schulz(
        cuda_launch.four_axes(matrix), out, num_iters, ridge, init
    )
    if plan.shared > launch.most_shared:
        return reference.newton_schulz_inverse(matrix, num_iters, ridge, init)
    launch(plan)
    return out


def _fits(*arguments) -> bool:
    """Whether the kernels take these tensors."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    first = tensors[0]
    return first.dtype in cuda_launch.DTYPES and all(
        t.numel() > 0 and t.dtype == first.dtype and t.device == first.device
        for t in tensors
    )


def _solver_fits(matrix: Tensor, *_) -> bool:
    return matrix.shape[-1] <= cuda_launch.MOST_SOLVER_SIZE and _fits(matrix)


def operators(find_launcher: Callable) -> dict[str, Callable]:
    """Implementations by operator name.

    Args:
        find_launcher: Device index to a launcher, or None for no kernels.
    """

    def choose(kernel, plain, fits):
        def run(*arguments):
            if fits(*arguments):
                launch = find_launcher(arguments[0].device.index)
                if launch is not None:
                    return kernel(*arguments, launch)
            return plain(*arguments)

        return run

    return {
        'laplacian_kernel': choose(
            laplacian_kernel, reference.laplacian_kernel, _fits
        ),
        'laplacian_kernel_backward': choose(
            laplacian_kernel_backward,
            reference.laplacian_kernel_backward,
            _fits,
        ),
        'newton_schulz_inverse': choose(
            newton_schulz_inverse,
            reference.newton_schulz_inverse,
            _solver_fits,
        ),
    }


if importlib.util.find_spec('pycuda') is not None:
    for _name, _function in operators(cuda_runtime.launcher).items():
        LIBRARY.impl(_name, _function, 'CUDA')
