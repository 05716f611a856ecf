"""Other attentions that the backbone takes in place of its own.

For fair comparison: ``attention=dict(kernel='inline')`` exchanges the mixing
of the tokens and nothing else; projections, the depthwise convolution of V
and the backbone stay. (``kernel='gaussian'`` is a row of
``cuda_ops.KERNELS``.) Each takes q, k and v (B, h, N, D) as projected and
returns (B, h, N, D).
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .inline import inline_attention
from .rala import rank_augmented_attention
from .softmax import softmax_attention


class OtherAttention(NamedTuple):
    """A row of :data:`OTHER_ATTENTIONS`.

    Attributes:
        function: ``(q, k, v) -> out``.
        linear: Whether it is linear in the number of tokens, as two products
            with a (D, D) matrix, or quadratic.
        gated: Whether its result is multiplied by one more projection of the
            tokens before the output projection.
    """

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    linear: bool
    gated: bool = False


OTHER_ATTENTIONS = {
    'softmax': OtherAttention(softmax_attention, linear=False),
    'inline': OtherAttention(inline_attention, linear=True),
    'rala': OtherAttention(rank_augmented_attention, linear=True, gated=True),
}
