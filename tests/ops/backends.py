"""Backends of the operators, and the parity checks that all of them pass.

The tests of the operators import the implementations from here only.
"""

import torch
from helpers import (
    assert_parity,
    laplacian_broadcast,
    laplacian_broadcast_backward,
)
from simt.emulator import Emulator

from cuda_ops import COMPILED, decompositions
from cuda_ops.common.compiled import VARIANTS
from cuda_ops.common.dispatch import cuda_operators
from cuda_ops.laplacian_kernel import cuda as laplacian_cuda
from cuda_ops.laplacian_kernel import reference as laplacian_reference
from cuda_ops.newton_schulz import reference as solver_reference

__all__ = ['COMPILED', 'Emulator', 'laplacian_cuda']

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
#: Plain PyTorch, which also runs on a GPU without kernels.
REFERENCES = ('reference', 'reference on CUDA')
#: The CUDA kernels, emulated on the CPU and compiled by nvcc.
CUDA_BACKENDS = ('emulated', 'CUDA')
BACKENDS = (*REFERENCES, *VARIANTS, *CUDA_BACKENDS)

REFERENCE_OPERATORS = {
    operator.name().removeprefix('mmlaplacian::'): function
    for operator, function in decompositions().items()
}
#: The operators as PyTorch's dispatcher chooses them.
DISPATCHED_OPERATORS = {
    name: getattr(torch.ops.mmlaplacian, name) for name in REFERENCE_OPERATORS
}


def emulated_operators(emulator):
    """Operators whose CUDA kernels run in an emulator."""
    return cuda_operators(lambda index: emulator)


class Backend:
    """One implementation of every operator, with operators as attributes.

    Attributes:
        name: Entry of :data:`BACKENDS`.
        device: Device of the operators' inputs.
        emulator: Emulator of the CUDA kernels, or None.
    """

    def __init__(self, name, device, operators, emulator=None):
        self.name = name
        self.device = torch.device(device)
        self.emulator = emulator
        for operator, function in operators.items():
            setattr(self, operator, function)

    def run_in_every_order(self, function):
        """Results of one call for each order in which the work can run.

        The compiled kernels run on 1, 2 and 3 threads, the emulator runs
        threads and blocks forwards and backwards; others only run twice.
        """
        if self.name in VARIANTS:
            threads = torch.get_num_threads()
            try:
                results = []
                for count in (1, 2, 3):
                    torch.set_num_threads(count)
                    results.append(function())
            finally:
                torch.set_num_threads(threads)
            return results
        first = function()
        if self.emulator:
            self.emulator.backwards = True
        return first, function()


def sample(backend, shape, dtype=torch.float32):
    """Tokens, landmarks and a gradient from the standard normal."""
    leading, n, m, d = shape
    return tuple(
        torch.randn(*leading, *axes).to(backend.device, dtype)
        for axes in ((n, d), (m, d), (n, m))
    )


def near_sample(backend, shape, dtype=torch.float32):
    """A sample of kernel values near 1, with equal rows and coordinates."""
    leading, n, m, d = shape
    scale = 1 / 4 if d <= 80 else 4 / d
    x, y = (
        scale * torch.randn(*leading, n, d),
        scale * torch.randn(*leading, m, d),
    )
    y[..., 0, :] = x[..., 0, :]
    y[..., -1, :] = x[..., -1, :]
    x[..., n // 2, 0] = y[..., m // 2, 0]
    grad = torch.randn(*leading, n, m)
    return tuple(t.to(backend.device, dtype) for t in (x, y, grad))


def check_kernel(backend, x, y, grad, bandwidth=4.0):
    """Compare values and gradients with the formula in float64.

    The allowed error follows from that of the reference in the dtype of
    ``x``; the reference itself is measured by the dense formula.

    Returns:
        Kernel matrix and both gradients.
    """
    if backend.name in REFERENCES:
        forward, backward = laplacian_broadcast, laplacian_broadcast_backward
    else:
        forward = laplacian_reference.laplacian_kernel
        backward = laplacian_reference.laplacian_kernel_backward
    kernel = backend.laplacian_kernel(x, y, bandwidth)
    arguments = (grad, x, y, kernel)
    ours = (
        kernel,
        *backend.laplacian_kernel_backward(*arguments, bandwidth),
    )
    plain = forward(x, y, bandwidth), *backward(*arguments, bandwidth)
    exact = (
        laplacian_broadcast(x.double(), y.double(), bandwidth),
        *laplacian_broadcast_backward(
            *(t.double() for t in arguments), bandwidth
        ),
    )
    for found, measure, expected in zip(ours, plain, exact, strict=True):
        assert found.dtype == x.dtype and found.is_contiguous()
        compare(found, measure, expected)
    return ours


def compare(found, plain, exact):
    """Apply the parity rule, or a fixed tolerance in float64."""
    if found.dtype == torch.float64:
        # PyTorch's exact form has the same rounding error here.
        atol = 1e-12 * exact.abs().max().clamp(max=1).item()
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=atol)
    else:
        assert_parity(found, plain, exact)


def check_inverse(backend, matrix, num_iters, ridge=0.01, init='identity'):
    """Compare an inverse with the reference in float64; returns it."""
    arguments = (num_iters, ridge, init)
    inverse = backend.newton_schulz_inverse(matrix, *arguments)
    assert inverse.dtype == matrix.dtype and inverse.is_contiguous()
    compare(
        inverse,
        solver_reference.newton_schulz_inverse(matrix, *arguments),
        solver_reference.newton_schulz_inverse(matrix.double(), *arguments),
    )
    return inverse
