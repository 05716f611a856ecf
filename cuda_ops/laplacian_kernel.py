"""The Laplacian kernel of two sets of vectors, as a torch operator."""

import math

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import reference
from ._library import LIBRARY, REFERENCE_KEY, check_tensor

LIBRARY.define(
    'laplacian_kernel(Tensor x, Tensor y, float bandwidth) -> Tensor'
)
LIBRARY.define(
    'laplacian_kernel_backward(Tensor grad, Tensor x, Tensor y, '
    'Tensor kernel, float bandwidth) -> (Tensor, Tensor)'
)
LIBRARY.impl('laplacian_kernel', reference.laplacian_kernel, REFERENCE_KEY)
LIBRARY.impl(
    'laplacian_kernel_backward',
    reference.laplacian_kernel_backward,
    REFERENCE_KEY,
)


@torch.library.register_fake('mmlaplacian::laplacian_kernel')
def _fake(x, y, bandwidth):
    return x.new_empty(*x.shape[:-1], y.shape[-2])


@torch.library.register_fake('mmlaplacian::laplacian_kernel_backward')
def _fake_backward(grad, x, y, kernel, bandwidth):
    return x.new_empty(x.shape), y.new_empty(y.shape)


def _setup_context(ctx, inputs, output):
    x, y, ctx.bandwidth = inputs
    ctx.save_for_backward(x, y, output)


def _backward(ctx, grad):
    x, y, kernel = ctx.saved_tensors
    grad_x, grad_y = torch.ops.mmlaplacian.laplacian_kernel_backward(
        grad, x, y, kernel, ctx.bandwidth
    )
    return grad_x, grad_y, None


torch.library.register_autograd(
    'mmlaplacian::laplacian_kernel', _backward, setup_context=_setup_context
)


def _no_second_gradient(ctx, *grads):
    raise NotImplementedError(
        'laplacian_kernel: a gradient of its gradient is not implemented; '
        'for second derivatives use the dense formula of cuda_ops/README.md'
    )


torch.library.register_autograd(
    'mmlaplacian::laplacian_kernel_backward', _no_second_gradient
)


@register_flop_formula(torch.ops.mmlaplacian.laplacian_kernel)
def flops(x_shape, y_shape, *args, out_shape=None, **kwargs) -> int:
    """A subtraction and an addition for each token, landmark and axis."""
    return 2 * math.prod(x_shape) * y_shape[-2]


@register_flop_formula(torch.ops.mmlaplacian.laplacian_kernel_backward)
def flops_backward(
    grad_shape, x_shape, y_shape, *args, out_shape=None, **kwargs
) -> int:
    """Two signed sums of the forward's size."""
    return 2 * flops(x_shape, y_shape)


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
        TypeError: An input is not a floating-point tensor, or dtypes differ.
        ValueError: Shapes or devices do not match, or ``bandwidth`` is not
            positive and finite.
    """
    check_tensor('laplacian_kernel', 'x', x)
    check_tensor('laplacian_kernel', 'y', y)
    if x.dtype != y.dtype:
        raise TypeError(
            'laplacian_kernel: x and y must have one dtype, '
            f'got {x.dtype} and {y.dtype}'
        )
    if x.device != y.device:
        raise ValueError(
            'laplacian_kernel: x and y must be on one device, '
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
