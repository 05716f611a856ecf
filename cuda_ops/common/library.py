"""Registration of operators with PyTorch, and rules for all of them."""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import register_flop_formula

from .dispatch import CudaKernels, register_cuda

NAMESPACE = 'mmlaplacian'

#: Schemas are defined here once. The compiled library adds CPU kernels to the
#: same names, and PyTorch's dispatcher prefers them to the reference.
LIBRARY = torch.library.Library(NAMESPACE, 'DEF')

#: Dispatch key of the reference: every device without kernels.
REFERENCE_KEY = 'CompositeExplicitAutograd'

_DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable] = {}


def register_operator(
    schema: str,
    *,
    reference: Callable,
    fake: Callable,
    backward: Callable,
    flops: Callable,
    setup_context: Callable | None = None,
    cuda: CudaKernels | None = None,
) -> None:
    """Define an operator of ``torch.ops.mmlaplacian``.

    Args:
        schema: Name, arguments and results in PyTorch's schema language.
        reference: Implementation in standard operators. It runs on devices
            without kernels, and replaces the operator in exported programs.
        fake: Returns empty results with the right shapes, for tracing.
        backward: Gradient, as in ``torch.library.register_autograd``.
        flops: Counts floating-point operations from the tensors' shapes.
        setup_context: Saves what ``backward`` needs. Default: None.
        cuda: Kernels for NVIDIA GPUs. Default: None, the reference runs.
    """
    name = schema.partition('(')[0]
    full_name = f'{NAMESPACE}::{name}'
    LIBRARY.define(schema)
    LIBRARY.impl(name, reference, REFERENCE_KEY)
    torch.library.register_fake(full_name, fake)
    torch.library.register_autograd(
        full_name, backward, setup_context=setup_context
    )
    operator = getattr(torch.ops.mmlaplacian, name)
    register_flop_formula(operator)(flops)
    _DECOMPOSITIONS[operator.default] = reference
    if cuda is not None:
        register_cuda(LIBRARY, name, cuda, reference)


def decompositions() -> dict[torch._ops.OpOverload, Callable]:
    """Return the table that replaces our operators by standard ones.

    Example:
        >>> program = torch.export.export(model, (images,))
        >>> table = torch.export.default_decompositions()
        >>> program.run_decompositions({**table, **decompositions()})
    """
    return dict(_DECOMPOSITIONS)


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype inside an operator: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_tensor(function: str, name: str, value, min_dim: int = 2) -> None:
    """Raise unless ``value`` is a real floating-point tensor.

    Args:
        function: Public function named in the message.
        name: Argument named in the message.
        value: Argument to check.
        min_dim: Smallest allowed number of axes. Default: 2.

    Raises:
        TypeError: If it is not a tensor, or its dtype is not floating-point.
        ValueError: If it has fewer axes than ``min_dim``.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f'{function}: {name} must be a torch.Tensor, '
            f'got {type(value).__name__}'
        )
    if not value.is_floating_point():
        raise TypeError(
            f'{function}: {name} must be float16, bfloat16, float32 or '
            f'float64, got {value.dtype}; convert it with .float()'
        )
    if value.dim() < min_dim:
        raise ValueError(
            f'{function}: {name} must have at least {min_dim} axes, '
            f'got shape {tuple(value.shape)}'
        )
