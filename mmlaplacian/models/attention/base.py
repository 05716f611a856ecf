"""The part that all attention layers share.

Letters: B images, h heads, N tokens, C channels, D = C / h, H x W token map.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from cuda_ops import accumulate_dtype

from ..arguments import list_choices


class Attention(nn.Module):
    """Multi-head attention with a depthwise convolution of V.

    ``proj((attend(q, k, v) + DWC(V)) * gate)``. A subclass defines
    :attr:`function`, or overrides :meth:`mix` if it needs the token map, and
    :meth:`multiply_adds`.

    Args:
        dim: Channels C, a multiple of ``num_heads``.
        num_heads: Heads h.
        local_kernel_size: Side of the depthwise convolution of V, odd, or 0
            to leave it out. Default: 3.
        share_qk: Use one projection for q and k, as SOFT does.
            Default: False.
        qkv_bias: Add a bias to the first projection. Default: True.

    Raises:
        TypeError: An argument is unknown; the choices are listed.
        ValueError: An argument is out of its range.
    """

    #: The mechanism, ``(q, k, v) -> out``, (B, h, N, D) each.
    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    #: Whether one more projection of the tokens multiplies the result.
    gated = False

    @list_choices()
    def __init__(
        self,
        dim: int,
        num_heads: int,
        local_kernel_size: int = 3,
        share_qk: bool = False,
        qkv_bias: bool = True,
    ):
        super().__init__()
        name = type(self).__name__
        if dim < 1 or num_heads < 1 or dim % num_heads:
            raise ValueError(
                f'{name}: dim must be a positive multiple of num_heads, '
                f'got dim={dim}, num_heads={num_heads}'
            )
        if local_kernel_size != 0 and (
            local_kernel_size < 0 or local_kernel_size % 2 == 0
        ):
            raise ValueError(
                f'{name}: local_kernel_size must be odd, or 0 for no '
                f'convolution, got {local_kernel_size}'
            )
        self.dim = dim
        self.num_heads = num_heads
        self.num_parts = (2 if share_qk else 3) + self.gated
        self.qkv = nn.Linear(dim, self.num_parts * dim, bias=qkv_bias)
        self.local_conv = (
            depthwise_conv(dim, local_kernel_size)
            if local_kernel_size
            else None
        )
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Mix the tokens of each image.

        Args:
            x: (B, N, C), tokens in row-major order.
            hw: (H, W) of the token map, N = H * W.

        Returns:
            (B, N, C) in the dtype of the projections.

        Raises:
            ValueError: N is not H * W.
        """
        if x.shape[1] != hw[0] * hw[1]:
            raise ValueError(
                f'{type(self).__name__}: x must hold H * W tokens, '
                f'got {x.shape[1]} tokens and hw={tuple(hw)}'
            )
        q, k, v, gate = self.project(x)
        out, _ = self.mix(q, k, v, hw)
        out = out.to(v.dtype).transpose(1, 2)
        if self.local_conv is not None:
            local = to_tokens(self.local_conv(to_map(v, hw)))
            # `local` is token-major, so the sum is too.
            out = local.unflatten(-1, out.shape[-2:]) + out
        out = out.flatten(2)
        return self.proj(out if gate is None else out * gate)

    def statistics(self, x: Tensor, hw: tuple[int, int]) -> dict[str, Tensor]:
        """Compute what :meth:`forward` does and return its intermediates.

        Args:
            x, hw: Arguments of :meth:`forward`.

        Returns:
            Intermediate tensors by name; empty for mechanisms without any.
        """
        q, k, v, _ = self.project(x)
        return self.mix(q, k, v, hw)[1]

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Project the tokens to q, k, v and the gate or None, (B, N, C)."""
        parts = list(self.qkv(x).chunk(self.num_parts, dim=-1))
        gate = parts.pop() if self.gated else None
        return parts[0], parts[-2], parts[-1], gate

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Apply the mechanism alone.

        Args:
            q, k, v: (B, N, C).
            hw: (H, W) of the token map.

        Returns:
            The result, (B, h, N, D), and the mechanism's statistics.
        """
        with full_precision(v.device.type):
            return self.function(*map(self.split_heads, (q, k, v))), {}

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, h, N, D), float32, or float64 for float64."""
        x = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return x.to(accumulate_dtype(x.dtype))

    def multiply_adds(self, hw: tuple[int, int]) -> dict[str, int]:
        """Multiply-adds of the mechanism for one image, by formula.

        Args:
            hw: (H, W) of the token map.

        Returns:
            ``products``: products of kernel matrices and values, which the
            core count includes. Other parts have names of their own.
            Projections and convolutions are not counted.
        """
        raise NotImplementedError


def depthwise_conv(dim: int, size: int) -> nn.Conv2d:
    """Depthwise convolution of odd size that keeps the map's size."""
    return nn.Conv2d(dim, dim, size, padding=size // 2, groups=dim)


def full_precision(device_type: str):
    """Context that switches autocast off if the device has it."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def to_map(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """(B, N, C) tokens to a (B, C, H, W) map in channels-last memory.

    Convolutions are far slower on a slice of a projection.
    """
    x = x.transpose(1, 2).unflatten(-1, tuple(hw))
    return x.contiguous(memory_format=torch.channels_last)


def to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) map to (B, N, C) tokens."""
    return x.flatten(2).transpose(1, 2)
