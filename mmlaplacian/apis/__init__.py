"""What the commands in ``tools/`` share, on top of mmengine."""

from .complexity import count
from .config import load_config, use_scope
from .data import check_datasets
from .explain import explain_failure, run_explained
from .launch import leave_processes, plain_batch_norm, prepare_device
from .layout import keep_roi_align_contiguous
from .weights import check_checkpoint, check_pretrained

__all__ = [
    'check_checkpoint',
    'check_datasets',
    'check_pretrained',
    'count',
    'explain_failure',
    'keep_roi_align_contiguous',
    'leave_processes',
    'load_config',
    'plain_batch_norm',
    'prepare_device',
    'run_explained',
    'use_scope',
]
