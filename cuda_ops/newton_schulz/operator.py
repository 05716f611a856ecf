"""Newton-Schulz inverse of small symmetric matrices, as a PyTorch operator."""

import math

import torch
from torch import Tensor

from ..common.library import check_tensor, register_operator
from . import cuda, reference

#: Default of what is added to the diagonal of a landmark matrix.
RIDGE = 0.01

INITS = ('identity', 'transpose')

#: Largest entry of ``I - P X`` after the default number of iterations.
RESIDUAL = 1e-3


def _fake(matrix, num_iters, ridge, init):
    return matrix.new_empty(matrix.shape)


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(output)


def _backward(ctx, grad):
    (inverse,) = ctx.saved_tensors
    grad = reference.newton_schulz_inverse_backward(grad, inverse)
    return grad, None, None, None


def flops(shape, num_iters, *args, out_shape=None, **kwargs) -> int:
    """Count two products of M x M matrices per iteration."""
    return 4 * num_iters * math.prod(shape) * shape[-1]


register_operator(
    'newton_schulz_inverse(Tensor matrix, int num_iters, float ridge, '
    'str init) -> Tensor',
    reference=reference.newton_schulz_inverse,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    flops=flops,
    cuda=cuda.INVERSE,
)


def default_num_iters(size: int, ridge: float, init: str = 'identity') -> int:
    """Smallest number of iterations with a residual below 1e-3.

    For entries in [0, 1] the eigenvalues l of P lie in [ridge, M + ridge].
    The residual's eigenvalues are (1 - l / r)^(2^T), or
    (1 - 1.8 (l / r)^2)^(2^T) from the transposed start. The count depends on
    no value of the matrix, so export and compile see a fixed loop. It is 16
    for M = 49 and ridge 0.01 (27 from the transposed start). In float32 the
    bound holds only while (M + ridge) / ridge is below about 5e4.

    Args:
        size: M, >= 1.
        ridge: Added to the diagonal, > 0.
        init: ``'identity'`` or ``'transpose'``. Default: ``'identity'``.
    """
    condition = (size + ridge) / ridge
    if init == 'identity':
        needed = -math.log(RESIDUAL) * condition
    else:
        needed = -math.log(RESIDUAL) / 1.8 * condition**2
    return math.ceil(math.log2(needed))


def newton_schulz_inverse(
    matrix: Tensor,
    num_iters: int | None = None,
    ridge: float = RIDGE,
    init: str = 'identity',
) -> Tensor:
    """Inverse of ``matrix + ridge * I`` by the Newton-Schulz iteration.

    ``X <- X (2I - P X)`` with ``P = matrix + ridge * I``. The start depends
    on r, the largest absolute row sum of each P, so the matrices of a batch
    do not affect each other. The gradient is that of the exact inverse,
    ``-X^T G X^T``. Computed in float32 (float64 for float64).

    Args:
        matrix: (..., M, M), symmetric positive semi-definite, floating
            point, M >= 1. The default count assumes entries in [-1, 1].
        num_iters: Number of iterations, >= 1. Default: None, the smallest
            number that guarantees a residual below 1e-3, see
            :func:`default_num_iters`.
        ridge: Added to the diagonal, >= 0, and > 0 if ``num_iters`` is None.
            Default: 0.01.
        init: ``'identity'`` starts from ``I / r``. ``'transpose'`` starts from
            ``1.8 / r^2 P^T``, which needs no symmetry. The paper has this
            form with the scale 2 / ||W||_2, which diverges for every kernel
            matrix. Default: ``'identity'``.

    Returns:
        (..., M, M) in ``matrix``'s dtype.

    Raises:
        TypeError: If ``matrix`` is not a floating-point tensor.
        ValueError: If ``matrix`` is not square, or another argument is out of
            its range.
    """
    check_tensor('newton_schulz_inverse', 'matrix', matrix)
    size = matrix.shape[-1]
    if matrix.shape[-2] != size or size == 0:
        raise ValueError(
            'newton_schulz_inverse: matrix must be (..., M, M) with M >= 1, '
            f'got {tuple(matrix.shape)}'
        )
    if init not in INITS:
        raise ValueError(
            f'newton_schulz_inverse: init must be one of {INITS}, got {init!r}'
        )
    if not (math.isfinite(ridge) and ridge >= 0):
        raise ValueError(
            'newton_schulz_inverse: ridge must be finite and not negative, '
            f'got {ridge}'
        )
    if num_iters is None:
        if ridge == 0:
            raise ValueError(
                'newton_schulz_inverse: num_iters has no default for ridge=0; '
                'pass num_iters or a positive ridge'
            )
        num_iters = default_num_iters(size, ridge, init)
    if num_iters < 1:
        raise ValueError(
            f'newton_schulz_inverse: num_iters must be >= 1, got {num_iters}'
        )
    return torch.ops.mmlaplacian.newton_schulz_inverse(
        matrix, int(num_iters), float(ridge), init
    )
