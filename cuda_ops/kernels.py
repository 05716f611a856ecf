"""Kernel functions of two sets of vectors, with one calling convention.

``function(x, y, bandwidth) -> K`` with ``x`` (..., N, D), ``y`` (..., M, D)
and ``K`` (..., N, M). In the attention, x and y are scaled by D^(-1/4).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .laplacian_kernel import laplacian_kernel


class Kernel(NamedTuple):
    """Entry of :data:`KERNELS`.

    Attributes:
        function: ``(x, y, bandwidth) -> K``.
        bandwidth: Default bandwidth; None for kernels without one.
        bounded: True if all values lie in [0, 1], as the default iteration
            count of Newton-Schulz assumes.
    """

    function: Callable[[Tensor, Tensor, float | None], Tensor]
    bandwidth: float | None
    bounded: bool

    def __call__(
        self, x: Tensor, y: Tensor, bandwidth: float | None = None
    ) -> Tensor:
        """Kernel matrix of x and y; None stands for the default bandwidth."""
        if bandwidth is None:
            bandwidth = self.bandwidth
        return self.function(x, y, bandwidth)


def gaussian_kernel(x: Tensor, y: Tensor, bandwidth: float) -> Tensor:
    """``exp(-|x - y|_2^2 / (2 bandwidth^2))``, the kernel of SOFT."""
    # Differences of points far from the origin would cancel below.
    origin = y.detach().mean(-2, keepdim=True)
    x, y = x - origin, y - origin
    square = (
        x.square().sum(-1)[..., :, None]
        - 2 * x @ y.mT
        + y.square().sum(-1)[..., None, :]
    ).clamp(min=0)
    return torch.exp(square / (-2 * bandwidth**2))


def cosine_kernel(x: Tensor, y: Tensor, bandwidth: None = None) -> Tensor:
    """``x . y / (|x| |y|)``."""
    return F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT


def polynomial_kernel(x: Tensor, y: Tensor, bandwidth: None = None) -> Tensor:
    """``(1 + x . y)^2``."""
    return (1 + x @ y.mT).square()


KERNELS = {
    'laplacian': Kernel(laplacian_kernel, 4.0, True),
    'gaussian': Kernel(gaussian_kernel, 1.0, True),
    'cosine': Kernel(cosine_kernel, None, False),
    'polynomial': Kernel(polynomial_kernel, None, False),
}
