"""Launch of the Newton-Schulz inverse's CUDA kernel."""

from math import ceil, isqrt
from pathlib import Path

from torch import Tensor

from ..common.dispatch import CudaKernels
from ..common.launcher import (
    BYTES_PER_FLOAT,
    WARP,
    Launch,
    four_axes,
    make_launch,
)
from ..common.nvcc import CudaSource, register_source

SOURCE = register_source(
    CudaSource(
        Path(__file__).with_name('newton_schulz.cu'), ('newton_schulz',)
    )
)
SIZES = SOURCE.constants()
TILE = SIZES['kTile']

#: Largest matrix, with a thread for each tile of a product.
MAX_SIZE = TILE * isqrt(SIZES['kMaxWarps'] * WARP)
#: Largest matrix for which P stays in shared memory next to Y and X.
MAX_SIZE_WITH_P = 64
#: The kernel counts iterations in 32 bits.
MAX_ITERATIONS = 2**31 - 1


def inverse(
    matrix: Tensor, num_iters: int, ridge: float, init: str, launch
) -> Tensor:
    """Compute the inverse through a launcher."""
    out = matrix.new_empty(matrix.shape)
    tensors = map(four_axes, (matrix, out))
    launch(launch_inverse(*tensors, num_iters, ridge, init))
    return out


def fallback_reason(matrix: Tensor, launch) -> str | None:
    """Explain why the kernel cannot invert a matrix; None if it can."""
    size = matrix.shape[-1]
    if size > MAX_SIZE:
        return (
            f'the kernel takes matrices up to {MAX_SIZE} x {MAX_SIZE}, got '
            f'{size} x {size}'
        )
    *_, floats = shared_memory(size)
    needed = floats * BYTES_PER_FLOAT
    if needed > launch.max_shared:
        return (
            f'a {size} x {size} matrix needs {needed} bytes of shared memory, '
            f'the GPU has {launch.max_shared}'
        )
    return None


INVERSE = CudaKernels(inverse, fallback_reason)


def shared_memory(size: int) -> tuple[int, bool, int]:
    """Lay out shared memory for a matrix.

    Returns:
        Floats between the starts of rows, whether P has a place of its own,
        and the total number of floats.
    """
    tiles = ceil(size / TILE)
    # An odd number of tiles spreads a column of tiles over the banks.
    stride = TILE * (tiles | 1)
    keep_p = size <= MAX_SIZE_WITH_P
    floats = (3 if keep_p else 2) * TILE * tiles * stride
    return stride, keep_p, SIZES['kMaxWarps'] + floats


def launch_inverse(
    matrix: Tensor, out: Tensor, num_iters: int, ridge: float, init: str
) -> Launch:
    """Describe the launch of the iteration.

    Args:
        matrix: (B, h, M, M), any strides, M at most :data:`MAX_SIZE`.
        out: (B, h, M, M), contiguous, same dtype.
        num_iters: Largest number of iterations.
        ridge: Added to the diagonal.
        init: ``'identity'`` or ``'transpose'``.
    """
    batch, heads, size, _ = matrix.shape
    stride, keep_p, floats = shared_memory(size)
    return make_launch(
        'newton_schulz',
        matrix.dtype,
        batch * heads,
        ceil(ceil(size / TILE) ** 2 / WARP) * WARP,
        floats,
        *(matrix, out, stride, keep_p, min(num_iters, MAX_ITERATIONS)),
        *(init == 'transpose', float(ridge)),
    )
