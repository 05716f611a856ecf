"""Softmax attention (Vaswani et al., arXiv 1706.03762, Eq. 1)."""

import torch.nn.functional as F
from torch import Tensor

from .base import Attention


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute ``softmax(q k^T / sqrt(D)) v``; quadratic in N.

    Args:
        q, k, v: (B, h, N, D).

    Returns:
        (B, h, N, D).
    """
    return F.scaled_dot_product_attention(q, k, v)


class SoftmaxAttention(Attention):
    """Softmax attention in the layer that :class:`Attention` describes."""

    function = staticmethod(softmax_attention)

    def multiply_adds(self, hw: tuple[int, int]) -> dict[str, int]:
        num_tokens = hw[0] * hw[1]
        return dict(products=2 * num_tokens**2 * self.dim)
