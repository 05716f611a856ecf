"""The Laplacian kernel of two sets of vectors, as a PyTorch operator."""

import math

import torch
from torch import Tensor

from ..common.library import check_tensor, register_operator
from . import cuda, reference


def _fake(x, y, bandwidth):
    return x.new_empty(*x.shape[:-1], y.shape[-2])


def _setup_context(ctx, inputs, output):
    x, y, ctx.bandwidth = inputs
    ctx.save_for_backward(x, y, output)


def _backward(ctx, grad):
    x, y, kernel = ctx.saved_tensors
    grad_x, grad_y = torch.ops.mmlaplacian.laplacian_kernel_backward(
        grad, x, y, kernel, ctx.bandwidth
    )
    return grad_x, grad_y, None


def flops(x_shape, y_shape, *args, out_shape=None, **kwargs) -> int:
    """Count a subtraction and an addition per token, landmark and feature."""
    return 2 * math.prod(x_shape) * y_shape[-2]


register_operator(
    'laplacian_kernel(Tensor x, Tensor y, float bandwidth) -> Tensor',
    reference=reference.laplacian_kernel,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    flops=flops,
    cuda=cuda.FORWARD,
)


def _backward_fake(grad, x, y, kernel, bandwidth):
    return x.new_empty(x.shape), y.new_empty(y.shape)


def _backward_backward(ctx, *grads):
    raise NotImplementedError(
        'laplacian_kernel: second derivatives are not implemented; use the '
        'dense formula of cuda_ops/README.md'
    )


def _backward_flops(
    grad_shape, x_shape, y_shape, *args, out_shape=None, **kwargs
) -> int:
    """Count two signed sums, each as large as the forward pass."""
    return 2 * flops(x_shape, y_shape)


register_operator(
    'laplacian_kernel_backward(Tensor grad, Tensor x, Tensor y, '
    'Tensor kernel, float bandwidth) -> (Tensor, Tensor)',
    reference=reference.laplacian_kernel_backward,
    fake=_backward_fake,
    backward=_backward_backward,
    flops=_backward_flops,
    cuda=cuda.BACKWARD,
)


def laplacian_kernel(x: Tensor, y: Tensor, bandwidth: float = 4.0) -> Tensor:
    """Laplacian kernel matrix of two sets of vectors.

    ``K[n, m] = exp(-sum_d |x[n, d] - y[m, d]| / bandwidth)``, the kernel of
    LaplacianFormer (arXiv 2604.20368). Time is O(N M D), memory O(N M).
    Differentiable once in both inputs, with sign(0) = 0 at ties. Distances
    are summed in float32 (float64 for float64). Far pairs may underflow to 0.

    Args:
        x: (..., N, D), floating point.
        y: (..., M, D), same leading axes, dtype and device as ``x``.
        bandwidth: Positive and finite, in units of L1 distance. Default: 4.0
            (the paper's lambda).

    Returns:
        (..., N, M) in ``x``'s dtype, values in [0, 1].

    Raises:
        TypeError: If an input is not a floating-point tensor, or the dtypes
            differ.
        ValueError: If shapes or devices do not match, or ``bandwidth`` is
            not positive and finite.
    """
    check_tensor('laplacian_kernel', 'x', x)
    check_tensor('laplacian_kernel', 'y', y)
    if x.dtype != y.dtype:
        raise TypeError(
            'laplacian_kernel: x and y must have the same dtype, '
            f'got {x.dtype} and {y.dtype}'
        )
    if x.device != y.device:
        raise ValueError(
            'laplacian_kernel: x and y must be on the same device, '
            f'got {x.device} and {y.device}'
        )
    if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-1]:
        raise ValueError(
            'laplacian_kernel: expected x (..., N, D) and y (..., M, D) with '
            'the same leading axes and D, '
            f'got {tuple(x.shape)} and {tuple(y.shape)}'
        )
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise ValueError(
            'laplacian_kernel: bandwidth must be positive and finite, '
            f'got {bandwidth}'
        )
    return torch.ops.mmlaplacian.laplacian_kernel(x, y, float(bandwidth))
