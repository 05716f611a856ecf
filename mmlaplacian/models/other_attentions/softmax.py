"""Softmax attention (Vaswani et al., arXiv 1706.03762, Eq. 1)."""

import torch.nn.functional as F
from torch import Tensor


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``softmax(q k^T / sqrt(D)) v``; quadratic in N.

    Args:
        q, k, v: (B, h, N, D).

    Returns:
        (B, h, N, D).
    """
    return F.scaled_dot_product_attention(q, k, v)
