"""What the commands in ``tools/`` share, on top of mmengine."""

from .complexity import count
from .config import load_config, use_scope
from .convert import (
    check_output,
    extract_backbone,
    publish,
    warm_start,
    write_checkpoint,
)
from .data import check_datasets
from .explain import explain_failure, run_explained
from .launch import leave_processes, plain_batch_norm, prepare_device
from .layout import keep_roi_align_contiguous
from .weights import check_checkpoint, check_pretrained

__all__ = [
    'check_checkpoint',
    'check_datasets',
    'check_output',
    'check_pretrained',
    'count',
    'explain_failure',
    'extract_backbone',
    'keep_roi_align_contiguous',
    'leave_processes',
    'load_config',
    'plain_batch_norm',
    'prepare_device',
    'publish',
    'run_explained',
    'use_scope',
    'warm_start',
    'write_checkpoint',
]
