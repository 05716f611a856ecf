"""Memory layout of tensors that go into mmcv."""

from torch import nn


def keep_roi_align_contiguous(model: nn.Module) -> None:
    """Make every RoIAlign of a model receive contiguous maps.

    mmcv's RoIAlign reads any memory as if it were contiguous NCHW. For
    channels-last maps, which a neck with channels-last weights produces, it
    returns garbage without an error (open-mmlab/mmcv #2203).
    """

    def contiguous(module, args):
        return (args[0].contiguous(), *args[1:])

    for module in model.modules():
        if type(module).__name__.startswith('RoIAlign'):
            module.register_forward_pre_hook(contiguous)
