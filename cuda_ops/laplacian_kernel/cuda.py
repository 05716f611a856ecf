"""Launches of the Laplacian kernel's CUDA kernels."""

from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from ..common.dispatch import CudaKernels
from ..common.launcher import WARP, Launch, four_axes, make_launch
from ..common.nvcc import CudaSource, register_source

SOURCE = register_source(
    CudaSource(
        Path(__file__).with_name('laplacian_kernel.cu'),
        ('laplacian_forward', 'laplacian_backward', 'laplacian_reduce'),
    )
)
SIZES = SOURCE.constants()

MAX_FORWARD_WARPS = SIZES['kForwardThreads'] // WARP
#: Tokens of a backward block.
BACKWARD_TOKENS = 256
#: Chunks of 32 features of a backward block.
MAX_BACKWARD_CHUNKS = SIZES['kBackwardThreads'] // (SIZES['kSubsets'] * WARP)
#: With fewer blocks the backward pass takes fewer tokens per block.
FEW_BLOCKS = 512


def forward(x: Tensor, y: Tensor, bandwidth: float, launch) -> Tensor:
    """Compute the kernel matrix through a launcher."""
    out = x.new_empty(*x.shape[:-1], y.shape[-2])
    launch(launch_forward(*map(four_axes, (x, y, out)), bandwidth))
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    kernel: Tensor,
    bandwidth: float,
    launch,
) -> tuple[Tensor, Tensor]:
    """Compute both gradients in one pass, with the same bits at every run."""
    grad_x, grad_y = x.new_empty(x.shape), y.new_empty(y.shape)
    grad, x, y, kernel = map(four_axes, (grad, x, y, kernel))
    _, splits = backward_splits(x, y)
    partial = x.new_empty(
        (x.shape[0] * x.shape[1], splits, *y.shape[2:]), dtype=torch.float32
    )
    launch(
        launch_backward(
            grad, x, y, kernel, four_axes(grad_x), partial, bandwidth
        )
    )
    launch(launch_reduce(partial, four_axes(grad_y)))
    return grad_x, grad_y


FORWARD = CudaKernels(forward)
BACKWARD = CudaKernels(backward)


def launch_forward(
    x: Tensor, y: Tensor, out: Tensor, bandwidth: float
) -> Launch:
    """Describe the launch of the kernel matrix.

    Args:
        x: (B, h, N, D), any strides, not empty.
        y: (B, h, M, D), any strides, same dtype.
        out: (B, h, N, M), contiguous, same dtype.
        bandwidth: Positive.
    """
    batch, heads, tokens, _ = x.shape
    width, tile = SIZES['kLandmarks'], SIZES['kTokens']
    units = ceil(y.shape[2] / width)
    landmark_tiles = ceil(units / MAX_FORWARD_WARPS)
    warps = ceil(units / landmark_tiles)
    return make_launch(
        'laplacian_forward',
        x.dtype,
        batch * heads * ceil(tokens / tile) * landmark_tiles,
        warps * WARP,
        max(
            SIZES['kDepth'] * (SIZES['kRow'] + warps * width),
            tile * warps * width,
        ),
        *(x, y, out, -1 / bandwidth),
    )


def backward_splits(x: Tensor, y: Tensor) -> tuple[int, int]:
    """Tokens of a backward block, and the number of blocks along the tokens.

    Both depend on the shapes (B, h, N, D) and (B, h, M, D) alone, and so does
    the order of the sums.
    """
    batch, heads, tokens, _ = x.shape
    slabs, chunks = _slabs(x)
    step = SIZES['kWeightTokens']
    per_block = BACKWARD_TOKENS
    if y.shape[2] > SIZES['kGroup']:
        # Shared memory holds this many rows of grad_x between the groups.
        per_block = max(per_block // chunks // step * step, step)
    if batch * heads * slabs * ceil(tokens / per_block) < FEW_BLOCKS:
        per_block = step
    return per_block, ceil(tokens / per_block)


def _slabs(x: Tensor) -> tuple[int, int]:
    """Blocks along the features, and chunks of 32 features in each."""
    chunks = ceil(x.shape[3] / WARP)
    slabs = ceil(chunks / MAX_BACKWARD_CHUNKS)
    return slabs, ceil(chunks / slabs)


def launch_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    kernel: Tensor,
    grad_x: Tensor,
    partial: Tensor,
    bandwidth: float,
) -> Launch:
    """Describe the launch of the gradients, with ``grad_y`` in parts.

    Args:
        grad: (B, h, N, M), any strides.
        x: (B, h, N, D), any strides.
        y: (B, h, M, D), any strides.
        kernel: (B, h, N, M), any strides; all four of one dtype.
        grad_x: (B, h, N, D), contiguous, same dtype.
        partial: (B * h, splits, M, D), float32, contiguous, with the splits of
            :func:`backward_splits`.
        bandwidth: Positive.
    """
    batch, heads, _, _ = x.shape
    group = SIZES['kGroup']
    slabs, chunks = _slabs(x)
    per_block, splits = backward_splits(x, y)
    floats = max(
        SIZES['kWeightTokens'] * SIZES['kPlaces'], chunks * group * WARP
    )
    if y.shape[2] > group:
        floats += per_block * chunks * WARP
    return make_launch(
        'laplacian_backward',
        x.dtype,
        batch * heads * slabs * splits,
        chunks * SIZES['kSubsets'] * WARP,
        floats,
        *(grad, x, y, kernel, grad_x, partial, per_block, -2 / bandwidth),
    )


def launch_reduce(partial: Tensor, grad_y: Tensor) -> Launch:
    """Describe the launch that sums the parts of ``grad_y``.

    Args:
        partial: (B * h, splits, M, D), float32, contiguous.
        grad_y: (B, h, M, D), contiguous.
    """
    threads = SIZES['kReduceParts'] * WARP
    return make_launch(
        'laplacian_reduce',
        grad_y.dtype,
        ceil(grad_y.numel() / WARP),
        threads,
        threads,
        *(partial, grad_y),
    )
