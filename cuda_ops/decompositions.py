"""The operators in standard ones, for exported programs."""

from collections.abc import Callable

import torch

from . import reference

OPS = torch.ops.mmlaplacian


def decompositions() -> dict[torch._ops.OpOverload, Callable]:
    """What ``ExportedProgram.run_decompositions`` needs to leave none of ours.

    Example:
        >>> program = torch.export.export(model, (images,))
        >>> table = torch.export.default_decompositions()
        >>> program.run_decompositions({**table, **decompositions()})
    """
    return {
        OPS.laplacian_kernel.default: reference.laplacian_kernel,
        OPS.laplacian_kernel_backward.default: (
            reference.laplacian_kernel_backward
        ),
        OPS.newton_schulz_inverse.default: reference.newton_schulz_inverse,
    }
