"""What every operator shares: the torch namespace and the dtype rules."""

import torch

#: Schemas are defined here once; a compiled library adds device kernels to
#: the same names, and PyTorch's dispatcher prefers those to the reference.
LIBRARY = torch.library.Library('mmlaplacian', 'DEF')

#: Dispatch key of the reference: any device that has no kernel of its own.
REFERENCE_KEY = 'CompositeExplicitAutograd'


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype inside an operator: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_tensor(function: str, name: str, value, min_dim: int = 2) -> None:
    """Raise unless ``value`` is a real floating-point tensor.

    Args:
        function: Public function named in the message.
        name: Argument named in the message.
        value: What the caller passed.
        min_dim: Smallest allowed number of axes.

    Raises:
        TypeError: Not a tensor, or not of a floating-point dtype.
        ValueError: Fewer axes than ``min_dim``.
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
