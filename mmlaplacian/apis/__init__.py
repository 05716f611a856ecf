"""What the commands in ``tools/`` share, on top of mmengine."""

from .config import load_config
from .data import check_datasets, explain_unreadable_image
from .launch import prepare_device
from .layout import keep_roi_align_contiguous
from .weights import check_checkpoint, check_pretrained

__all__ = [
    'check_checkpoint',
    'check_datasets',
    'check_pretrained',
    'explain_unreadable_image',
    'keep_roi_align_contiguous',
    'load_config',
    'prepare_device',
]
