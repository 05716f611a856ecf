"""Injective linear attention (InLine; Han et al., arXiv 2412.06590).

As its authors' PVT uses it: identity feature map, scores scaled by
1 / (N sqrt(D)), and the weights of each query made to sum to 1 by
subtraction instead of division. Its local branch, a convolution predicted
for each image, is left out: the backbone's own depthwise convolution stands
there.
"""

from torch import Tensor


def inline_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``Z v`` with ``Z_ij = s_ij - mean_j s_ij + 1/N``; linear in N.

    ``s_ij = q_i . k_j / (N sqrt(D))``.

    Args:
        q, k, v: (B, h, N, D).

    Returns:
        (B, h, N, D).
    """
    q = q * q.shape[-1] ** -0.5
    key_mean = k.mean(-2, keepdim=True)
    value_mean = v.mean(-2, keepdim=True)
    # The products stay of the size of a mean over the tokens.
    products = (k / k.shape[-2]).mT @ v
    return q @ products + (1 - q @ key_mean.mT) * value_mean
