"""Counts of the parameters and multiply-adds of a model."""

from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..models.attention import Attention


class Complexity(NamedTuple):
    """Result of :func:`count`.

    Attributes:
        parameters: Number of parameters.
        core: Multiply-adds of convolutions, linear layers and
            kernel-times-value products, the count of the paper's table.
        extra: Further multiply-adds by part: distance, solver, pooling,
            whitening.
    """

    parameters: int
    core: int
    extra: dict[str, int]

    @property
    def full(self) -> int:
        """Sum of all multiply-adds."""
        return self.core + sum(self.extra.values())


def count(model: nn.Module, *inputs) -> Complexity:
    """Count with PyTorch's counter, and with formulas in our attention.

    The figures do not depend on the implementation of an operator. One
    multiply-add counts 1, as in mmengine and in the paper, not 2.

    Args:
        model: Any module, also on the meta device.
        inputs: Arguments of its forward call, such as images (B, 3, H, W).
    """
    mixing: dict[str, int] = {}

    def add_formula(module, inputs, output):
        tokens, hw = inputs
        for part, number in module.multiply_adds(hw).items():
            mixing[part] = mixing.get(part, 0) + number * len(tokens)

    attentions = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Attention)
    }
    handles = [
        m.register_forward_hook(add_formula) for m in attentions.values()
    ]
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
        # Formulas replace the products of the attention itself; its linear
        # layers and convolutions stay counted.
        inside = sum(by_module.get(path, {}).values())
        layers = sum(
            sum(by_module.get(f'{path}.{child}', {}).values())
            for child, _ in attentions[name].named_children()
        )
        total -= inside - layers
    parameters = sum(p.numel() for p in model.parameters())
    core = total // 2 + mixing.pop('products', 0)
    return Complexity(parameters, core, mixing)
