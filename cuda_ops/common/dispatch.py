"""Choice between CUDA kernels and the reference, and its reasons."""

import importlib.util
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import launcher
from .compiled import COMPILED

logger = logging.getLogger('cuda_ops')


class CudaKernels(NamedTuple):
    """CUDA implementation of an operator.

    Attributes:
        run: Takes the operator's arguments and a launcher.
        fallback_reason: Takes tensors that :func:`unsupported_tensors` has
            passed and the launcher, and returns why the kernels cannot take
            them, or None if they can. Default: the kernels take all of them.
    """

    run: Callable
    fallback_reason: Callable[..., str | None] = lambda *_, launch: None


_OPERATORS: dict[str, tuple[CudaKernels, Callable]] = {}


def register_cuda(
    library: torch.library.Library,
    name: str,
    kernels: CudaKernels,
    reference: Callable,
) -> None:
    """Give an operator CUDA kernels, if pycuda is installed."""
    _OPERATORS[name] = kernels, reference
    if importlib.util.find_spec('pycuda') is not None:
        library.impl(name, choose(name, launcher.find_launcher), 'CUDA')


def unsupported_tensors(*tensors: Tensor) -> str | None:
    """Explain why no kernel takes these tensors; None if kernels take them."""
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype not in launcher.DTYPES:
            return (
                'the kernels take float32, float16 and bfloat16, got '
                f'{tensor.dtype}'
            )
        if tensor.dtype != first.dtype:
            return f'dtypes differ: {first.dtype} and {tensor.dtype}'
        if tensor.device != first.device:
            return f'devices differ: {first.device} and {tensor.device}'
        if tensor.numel() == 0:
            return f'a tensor is empty: shape {tuple(tensor.shape)}'
    return None


def choose(name: str, find_launcher: Callable) -> Callable:
    """Implementation of an operator by kernels, or else by the reference.

    Args:
        name: Operator.
        find_launcher: Returns the launcher of a device index, or None if the
            device cannot run the kernels.
    """
    kernels, reference = _OPERATORS[name]

    def run(*arguments):
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        reason = unsupported_tensors(*tensors)
        if reason is None:
            launch = find_launcher(tensors[0].device.index)
            if launch is None:
                # The search for a launcher has warned.
                return reference(*arguments)
            reason = kernels.fallback_reason(*tensors, launch=launch)
            if reason is None:
                return kernels.run(*arguments, launch=launch)
        logger.debug('%s: plain PyTorch runs: %s', name, reason)
        return reference(*arguments)

    return run


def cuda_operators(find_launcher: Callable) -> dict[str, Callable]:
    """Return :func:`choose` of every operator with CUDA kernels, by name."""
    return {name: choose(name, find_launcher) for name in _OPERATORS}


def fallback_reason(operator: str, *tensors: Tensor) -> str | None:
    """Explain why plain PyTorch runs in place of an operator's kernels.

    For tensors on a GPU this loads the kernels, and compiles them if needed.

    Args:
        operator: Name of an operator, such as ``'laplacian_kernel'``.
        tensors: Tensor arguments of the call in question.

    Returns:
        The reason, or None if kernels run.

    Raises:
        ValueError: If the operator is unknown, or no tensor is given.

    Example:
        >>> fallback_reason('laplacian_kernel', x.double(), y.double())
        'the kernels take float32, float16 and bfloat16, got torch.float64'
    """
    if operator not in _OPERATORS:
        raise ValueError(
            f'fallback_reason: operator must be one of {[*_OPERATORS]}, '
            f'got {operator!r}'
        )
    if not tensors:
        raise ValueError(
            f'fallback_reason: expected the tensors that {operator} takes, '
            'got none'
        )
    device = tensors[0].device
    if device.type == 'cpu':
        return COMPILED.unavailable_reason
    if device.type != 'cuda':
        return f'there are no kernels for the device type {device.type}'
    reason = unsupported_tensors(*tensors)
    reason = reason or launcher.unavailable_reason(device.index)
    if reason is not None:
        return reason
    kernels, _ = _OPERATORS[operator]
    return kernels.fallback_reason(
        *tensors, launch=launcher.find_launcher(device.index)
    )
