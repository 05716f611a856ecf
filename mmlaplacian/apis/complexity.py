"""Parameters and multiply-adds of a model."""

from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..models import LaplacianAttention


class Complexity(NamedTuple):
    """What :func:`count` found.

    Attributes:
        parameters: All of them.
        core: Multiply-adds of convolutions, linear layers and
            kernel-times-value products, the count of the paper's table.
        extra: Multiply-adds beside them, by part: distance, solver, pooling,
            whitening.
    """

    parameters: int
    core: int
    extra: dict[str, int]

    @property
    def full(self) -> int:
        """All multiply-adds."""
        return self.core + sum(self.extra.values())


def count(model: nn.Module, *inputs) -> Complexity:
    """Count by PyTorch's own counter and, in our attention, by formula.

    So the figures do not depend on which implementation of an operator ran.
    1 multiply-add is 1, as in mmengine and in the paper, not 2.

    Args:
        model: Any module; may be on the meta device.
        inputs: What it is called with, such as images (B, 3, H, W).
    """
    mixing: dict[str, int] = {}

    def note(module, given, output):
        tokens, hw = given
        for part, number in module.multiply_adds(hw).items():
            mixing[part] = mixing.get(part, 0) + number * len(tokens)

    attentions = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, LaplacianAttention)
    }
    handles = [m.register_forward_hook(note) for m in attentions.values()]
    counter = FlopCounterMode(display=False, depth=None)
    with torch.no_grad(), counter:
        model(*inputs)
    for handle in handles:
        handle.remove()
    total = counter.get_total_flops()
    by_module = counter.get_flop_counts()
    root = type(model).__name__
    for name in attentions:
        path = f'{root}.{name}' if name else root
        # What the counter saw in the attention itself, outside its layers:
        # the products that the formulas replace.
        inside = sum(by_module.get(path, {}).values())
        layers = sum(
            sum(by_module.get(f'{path}.{child}', {}).values())
            for child, _ in attentions[name].named_children()
        )
        total -= inside - layers
    parameters = sum(p.numel() for p in model.parameters())
    core = total // 2 + mixing.pop('products', 0)
    return Complexity(parameters, core, mixing)
