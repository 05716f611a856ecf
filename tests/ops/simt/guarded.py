"""Launch the kernels on tensors next to pages without access.

A read or write beyond a tensor kills the process with a signal. Run it as
``guarded.py LIBRARIES`` with the folder of the emulator's libraries.
"""

import ctypes
import mmap
import sys
from pathlib import Path

import torch
from emulator import Emulator

from cuda_ops.laplacian_kernel import cuda as laplacian
from cuda_ops.newton_schulz import cuda as solver

PAGE = mmap.PAGESIZE
PROT_NONE = 0
SHAPES = [(1, 1, 1), (130, 7, 5), (65, 50, 40), (9, 49, 130)]
SIZES = [1, 7, 49, 66]
DTYPES = [torch.float32, torch.float16]


def guarded(shape, dtype, at_end):
    """Tensor of ones that ends or begins at a page without access."""
    count = int(torch.Size(shape).numel())
    size = count * dtype.itemsize
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        place = ctypes.c_void_p(start + page * PAGE)
        if ctypes.CDLL(None).mprotect(place, PAGE, PROT_NONE) != 0:
            raise OSError('mprotect failed')
    offset = PAGE + (pages * PAGE - size if at_end else 0)
    tensor = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
    return tensor.view(shape).fill_(1)


def main():
    emulator = Emulator(None, Path(sys.argv[1]))
    for at_end in (True, False):
        for dtype in DTYPES:

            def new(*shape, dtype=dtype, at_end=at_end):
                return guarded(shape, dtype, at_end)

            for n, m, d in SHAPES:
                x, y, k = new(1, 2, n, d), new(1, 2, m, d), new(1, 2, n, m)
                emulator(laplacian.launch_forward(x, y, k, 4.0))
                grad, grad_x, grad_y = (new(*t.shape) for t in (k, x, y))
                _, splits = laplacian.backward_splits(x, y)
                partial = new(2, splits, m, d, dtype=torch.float32)
                emulator(
                    laplacian.launch_backward(
                        grad, x, y, k, grad_x, partial, 4.0
                    )
                )
                emulator(laplacian.launch_reduce(partial, grad_y))
            for size in SIZES:
                matrix, out = new(1, 2, size, size), new(1, 2, size, size)
                emulator(
                    solver.launch_inverse(matrix, out, 2, 0.01, 'identity')
                )
    print('nothing beyond the tensors was touched')


if __name__ == '__main__':
    main()
