"""Injective linear attention (InLine; Han et al., arXiv 2412.06590).

The form is the one that its authors use in PVT: an identity feature map,
scores scaled by 1 / (N sqrt(D)), and weights that sum to 1 for each query by
subtraction instead of division. Its local branch, a convolution predicted for
each image, is left out because the layer has a depthwise convolution already.
"""

from torch import Tensor

from .base import Attention


def inline_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute ``Z v`` with ``Z_ij = s_ij - mean_j s_ij + 1/N``; linear in N.

    ``s_ij = q_i . k_j / (N sqrt(D))``.

    Args:
        q, k, v: (B, h, N, D).

    Returns:
        (B, h, N, D).
    """
    q = q * q.shape[-1] ** -0.5
    key_mean = k.mean(-2, keepdim=True)
    value_mean = v.mean(-2, keepdim=True)
    # Dividing k by N first keeps the sums at the size of a mean.
    products = (k / k.shape[-2]).mT @ v
    return q @ products + (1 - q @ key_mean.mT) * value_mean


class InlineAttention(Attention):
    """InLine attention in the layer that :class:`Attention` describes."""

    function = staticmethod(inline_attention)

    def multiply_adds(self, hw: tuple[int, int]) -> dict[str, int]:
        return linear_multiply_adds(self, hw)


def linear_multiply_adds(
    attention: Attention, hw: tuple[int, int]
) -> dict[str, int]:
    """Multiply-adds of two products with a (D, D) matrix for each head."""
    width = attention.dim // attention.num_heads
    return dict(products=2 * hw[0] * hw[1] * width * attention.dim)
