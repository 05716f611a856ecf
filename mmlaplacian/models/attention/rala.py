"""Rank-augmented linear attention (RALA; Fan et al., arXiv 2411.07635).

The layer has both of its parts. Keys are weighted by how much the mean query
attends to them, which raises the rank of the (D, D) buffer. A projection of
the tokens multiplies the result, which raises the rank of the output. The
rotary position embedding of the authors' network is left out because the
convolutions of this backbone encode position.
"""

import torch.nn.functional as F
from torch import Tensor

from .base import Attention
from .inline import linear_multiply_adds


def rank_augmented_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute ``Z v``, ``Z_ij = a_j f(q_i) . f(k_j)`` with rows of sum 1.

    ``f(x) = elu(x) + 1`` and ``a_j = N softmax_j(mean_i f(q_i) . f(k_j) /
    sqrt(D))``; linear in N.

    Args:
        q, k, v: (B, h, N, D).

    Returns:
        (B, h, N, D), before the product with the gate.
    """
    q, k = F.elu(q) + 1, F.elu(k) + 1
    query_mean = q.mean(-2, keepdim=True) * q.shape[-1] ** -0.5
    # The factor N of a_j cancels in the division by the row sums.
    weights = (query_mean @ k.mT).softmax(-1).mT
    k = k * weights
    row_sum = q @ k.sum(-2, keepdim=True).mT
    return q @ (k.mT @ v) / (row_sum + 1e-6)


class RalaAttention(Attention):
    """RALA in the layer that :class:`Attention` describes, with its gate."""

    function = staticmethod(rank_augmented_attention)
    gated = True

    def multiply_adds(self, hw: tuple[int, int]) -> dict[str, int]:
        return linear_multiply_adds(self, hw)
