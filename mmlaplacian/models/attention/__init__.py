"""Attention layers, one mechanism per file, and the algebra behind ours."""

from .algebra import dense_attention, nystrom_attention, whitened_product
from .base import Attention
from .inline import InlineAttention
from .laplacian import LaplacianAttention
from .rala import RalaAttention
from .softmax import SoftmaxAttention

#: The mechanisms that ``attention=dict(type=...)`` of the backbone selects.
ATTENTIONS: dict[str, type[Attention]] = {
    attention.__name__: attention
    for attention in (
        LaplacianAttention,
        SoftmaxAttention,
        InlineAttention,
        RalaAttention,
    )
}


def build_attention(
    dim: int, num_heads: int, type: str = 'LaplacianAttention', **switches
) -> Attention:
    """Build an attention layer by name.

    Args:
        dim: Channels.
        num_heads: Heads.
        type: A name in :data:`ATTENTIONS`. Default: ``'LaplacianAttention'``.
        switches: Further arguments of that class.

    Raises:
        ValueError: The type is unknown, or an argument is out of its range.
        TypeError: The class does not know an argument.
    """
    if type not in ATTENTIONS:
        raise ValueError(
            f'attention: type must be one of {list(ATTENTIONS)}, got {type!r}'
        )
    return ATTENTIONS[type](dim, num_heads, **switches)


__all__ = [
    'ATTENTIONS',
    'Attention',
    'InlineAttention',
    'LaplacianAttention',
    'RalaAttention',
    'SoftmaxAttention',
    'build_attention',
    'dense_attention',
    'nystrom_attention',
    'whitened_product',
]
