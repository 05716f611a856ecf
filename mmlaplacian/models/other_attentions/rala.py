"""Rank-augmented linear attention (RALA; Fan et al., arXiv 2411.07635).

Both parts of it: keys are weighted by how much the mean query attends to
them, which raises the rank of the (D, D) buffer, and the caller multiplies
the result by a projection of the tokens, which raises the rank of the
output. The rotary position embedding of the authors' network is left out:
the backbone's position comes from its convolutions.
"""

import torch.nn.functional as F
from torch import Tensor


def rank_augmented_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``Z v``, ``Z_ij = a_j f(q_i) . f(k_j)``, rows divided by their sum.

    ``f(x) = elu(x) + 1`` and ``a_j = N softmax_j(mean_i f(q_i) . f(k_j) /
    sqrt(D))``; linear in N.

    Args:
        q, k, v: (B, h, N, D).

    Returns:
        (B, h, N, D), before the product with the gate.
    """
    q, k = F.elu(q) + 1, F.elu(k) + 1
    query_mean = q.mean(-2, keepdim=True) * q.shape[-1] ** -0.5
    # Sums to 1 over the keys: the factor N makes means of sums.
    weights = (query_mean @ k.mT).softmax(-1).mT
    k = k * weights
    row_sum = q @ k.sum(-2, keepdim=True).mT
    return q @ (k.mT @ v) / (row_sum + 1e-6)
