"""What the CUDA kernels are launched with: sizes, and parameters as bytes.

Pure functions of shapes and addresses; they mirror the constants and structs
of ``csrc/cuda/*.cu``. The GPU runtime and the emulation of the tests launch
what is made here.
"""

import struct
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

#: Names of the storage dtypes in kernel names.
DTYPES = {
    torch.float32: 'float32',
    torch.float16: 'float16',
    torch.bfloat16: 'bfloat16',
}

#: Kernels of each source file, without the dtype.
SOURCES = {
    'laplacian_kernel': (
        'laplacian_forward',
        'laplacian_backward',
        'laplacian_reduce',
    ),
    'newton_schulz': ('newton_schulz',),
}

#: Parameter structs of the kernels. Eight-byte fields come first and the
#: sizes are multiples of eight, so that no compiler pads.
FORMATS = {
    'laplacian_forward': '=3Q 14q fi',
    'laplacian_backward': '=6Q 23q fi',
    'laplacian_reduce': '=2Q 3q',
    'newton_schulz': '=2Q 5q 5if',
}

WARP = 32
#: Largest matrix of the solver, whose thread computes a tile of 4 x 4.
MOST_SOLVER_SIZE = 128
#: Largest matrix for which P stays in shared memory beside Y and X.
MOST_SIZE_WITH_P = 64
#: Blocks below which the backward pass takes fewer tokens a block.
FEW_BLOCKS = 512
MOST_BLOCKS = 2**31 - 1

_MOST_INT = 2**31 - 1
_MOST_FLOAT = torch.finfo(torch.float32).max
_FLOAT = 4  # bytes
_LANDMARKS = 7
_FORWARD_TOKENS, _FORWARD_DEPTH = 128, 32
_FORWARD_ROW = _FORWARD_TOKENS + 4
_GROUP, _PLACES, _WEIGHT_TOKENS, _SUBSETS = 49, 56, 64, 4
_BACKWARD_TOKENS, _BACKWARD_CHUNKS = 256, 4
_REDUCE_PARTS = 8
_TILE, _SUMS = 4, 32


class Launch(NamedTuple):
    """One kernel launch.

    Attributes:
        kernel: Full name of the kernel, with its dtype.
        grid: Blocks; every grid has one axis.
        block: Threads of a block.
        shared: Bytes of dynamic shared memory.
        arguments: The parameter struct.
    """

    kernel: str
    grid: int
    block: int
    shared: int
    arguments: bytes


def kernel_names(source: str) -> list[str]:
    """Full names of the kernels in a source file of :data:`SOURCES`."""
    return [
        f'{name}_{dtype}'
        for name in SOURCES[source]
        for dtype in DTYPES.values()
    ]


def four_axes(tensor: Tensor) -> Tensor:
    """A tensor (..., rows, columns) as (B, h, rows, columns).

    A view but where more than two leading axes do not merge. The tensors of a
    call have the same leading axes, so that their B and h agree.
    """
    if tensor.dim() > 4:
        return tensor.flatten(0, -4)
    return tensor[(None,) * (4 - tensor.dim())]


def laplacian_forward(
    x: Tensor, y: Tensor, out: Tensor, bandwidth: float
) -> Launch:
    """Launch of the forward kernel.

    Args:
        x: (B, h, N, D), any strides, not empty.
        y: (B, h, M, D), any strides, same dtype.
        out: B * h * N * M contiguous values, same dtype.
        bandwidth: Positive.
    """
    batch, heads, tokens, depth = x.shape
    landmarks = y.shape[2]
    units = ceil(landmarks / _LANDMARKS)
    landmark_tiles = ceil(units / 8)
    warps = ceil(units / landmark_tiles)
    token_tiles = ceil(tokens / _FORWARD_TOKENS)
    floats = max(
        _FORWARD_DEPTH * (_FORWARD_ROW + warps * _LANDMARKS),
        _FORWARD_TOKENS * warps * _LANDMARKS,
    )
    return _launch(
        'laplacian_forward',
        x.dtype,
        batch * heads * token_tiles * landmark_tiles,
        warps * WARP,
        floats,
        *(x.data_ptr(), y.data_ptr(), out.data_ptr()),
        *(*x.stride(), *y.stride()),
        *(heads, tokens, landmarks, depth, token_tiles, landmark_tiles),
        *(_float32(-1 / bandwidth), 0),
    )


def backward_splits(x: Tensor, y: Tensor) -> tuple[int, int]:
    """Tokens of a block of the backward pass, and blocks along the tokens.

    Both follow from the shapes (B, h, N, D) and (B, h, M, D) alone, so that
    the order of the sums does.
    """
    batch, heads, tokens, _ = x.shape
    slabs, chunks = _slabs(x)
    per_block = _BACKWARD_TOKENS
    if y.shape[2] > _GROUP:
        # Shared memory holds this many rows of grad_x between the groups.
        per_block = max(
            per_block // chunks // _WEIGHT_TOKENS * _WEIGHT_TOKENS,
            _WEIGHT_TOKENS,
        )
    if batch * heads * slabs * ceil(tokens / per_block) < FEW_BLOCKS:
        per_block = _WEIGHT_TOKENS
    return per_block, ceil(tokens / per_block)


def _slabs(x: Tensor) -> tuple[int, int]:
    """Blocks along the features, and warps' widths of features in each."""
    chunks = ceil(x.shape[3] / WARP)
    slabs = ceil(chunks / _BACKWARD_CHUNKS)
    return slabs, ceil(chunks / slabs)


def laplacian_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    kernel: Tensor,
    grad_x: Tensor,
    partial: Tensor,
    bandwidth: float,
) -> Launch:
    """Launch of the backward kernel.

    Args:
        grad: (B, h, N, M), any strides.
        x: (B, h, N, D), any strides.
        y: (B, h, M, D), any strides.
        kernel: (B, h, N, M), any strides; all four of one dtype.
        grad_x: B * h * N * D contiguous values, same dtype.
        partial: (B * h, splits, M, D), float32, contiguous, with the splits of
            :func:`backward_splits`.
        bandwidth: Positive.
    """
    batch, heads, tokens, depth = x.shape
    landmarks = y.shape[2]
    slabs, chunks = _slabs(x)
    per_block, splits = backward_splits(x, y)
    floats = max(_WEIGHT_TOKENS * _PLACES, chunks * _GROUP * WARP)
    if landmarks > _GROUP:
        floats += per_block * chunks * WARP
    return _launch(
        'laplacian_backward',
        x.dtype,
        batch * heads * slabs * splits,
        chunks * _SUBSETS * WARP,
        floats,
        *(grad.data_ptr(), x.data_ptr(), y.data_ptr(), kernel.data_ptr()),
        *(grad_x.data_ptr(), partial.data_ptr()),
        *(*grad.stride(), *x.stride(), *y.stride(), *kernel.stride()),
        *(heads, tokens, landmarks, depth, splits, slabs, per_block),
        *(_float32(-2 / bandwidth), 0),
    )


def laplacian_reduce(partial: Tensor, grad_y: Tensor) -> Launch:
    """Launch that sums ``partial`` (K, splits, M, D) to ``grad_y``."""
    matrices, splits = partial.shape[:2]
    size = partial.shape[2] * partial.shape[3]
    return _launch(
        'laplacian_reduce',
        grad_y.dtype,
        ceil(matrices * size / WARP),
        _REDUCE_PARTS * WARP,
        _REDUCE_PARTS * WARP,
        *(partial.data_ptr(), grad_y.data_ptr(), matrices, splits, size),
    )


def newton_schulz(
    matrix: Tensor, out: Tensor, num_iters: int, ridge: float, init: str
) -> Launch:
    """Launch of the Newton-Schulz kernel.

    Args:
        matrix: (B, h, M, M), any strides, M at most 128.
        out: B * h * M * M contiguous values, same dtype.
        num_iters: Most iterations.
        ridge: Added to the diagonal.
        init: ``'identity'`` or ``'transpose'``.
    """
    batch, heads, size, _ = matrix.shape
    tiles = ceil(size / _TILE)
    # An odd number of tiles spreads a column of tiles over the banks.
    stride = _TILE * (tiles | 1)
    keep_p = size <= MOST_SIZE_WITH_P
    return _launch(
        'newton_schulz',
        matrix.dtype,
        batch * heads,
        ceil(tiles**2 / WARP) * WARP,
        _SUMS + (3 if keep_p else 2) * _TILE * tiles * stride,
        *(matrix.data_ptr(), out.data_ptr(), *matrix.stride(), heads),
        *(size, stride, min(num_iters, _MOST_INT), init == 'transpose'),
        *(keep_p, _float32(ridge)),
    )


def _float32(value: float) -> float:
    return max(-_MOST_FLOAT, min(_MOST_FLOAT, value))


def _launch(name, dtype, grid, block, floats, *fields) -> Launch:
    return Launch(
        f'{name}_{DTYPES[dtype]}',
        grid,
        block,
        floats * _FLOAT,
        struct.pack(FORMATS[name], *fields),
    )
