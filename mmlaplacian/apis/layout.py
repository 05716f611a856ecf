"""Memory layout at the border to mmcv."""

from torch import nn


def keep_roi_align_contiguous(model: nn.Module) -> None:
    """Hand contiguous maps to every RoIAlign of a model.

    mmcv's RoIAlign reads any memory as if it were contiguous NCHW and returns
    garbage without an error for channels-last maps (open-mmlab/mmcv #2203),
    which a neck with channels-last weights makes.
    """

    def contiguous(module, args):
        return (args[0].contiguous(), *args[1:])

    for module in model.modules():
        if type(module).__name__.startswith('RoIAlign'):
            module.register_forward_pre_hook(contiguous)
