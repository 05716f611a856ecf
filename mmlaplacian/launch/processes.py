"""Devices and processes, including CPU training that mmengine lacks."""

import gc
import os

import torch
from mmengine.config import Config
from mmengine.device import get_device

from ..check_env import check_gpu_ops
from ..errors import InputError
from .config import scope_of


def prepare_device(config: Config, launcher: str, amp: bool = False) -> None:
    """Adapt a config to the device.

    mmengine supports ``--launcher pytorch`` on accelerators only. On a CPU,
    this function starts gloo and wraps the model without device ids. SyncBN
    becomes BN on a CPU, which has no SyncBN, and in a single process, where
    both are the same.

    Args:
        config: Changed in place.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        amp: Train in mixed precision. Default: False.

    Raises:
        InputError: The device does not support the request.
    """
    device = get_device()
    if scope_of(config) == 'mmdet':
        check_gpu_ops()
    if amp:
        if device == 'cpu':
            raise InputError(
                '--amp needs an accelerator and PyTorch sees none; train '
                'without --amp (float32)'
            )
        config.optim_wrapper.type = 'AmpOptimWrapper'
        config.optim_wrapper.loss_scale = 'dynamic'
    config.launcher = launcher
    if launcher == 'none' or device == 'cpu':
        plain_batch_norm(config)
    if launcher == 'none' or device != 'cpu':
        return
    if launcher != 'pytorch':
        raise InputError(
            f'--launcher {launcher} needs accelerators and PyTorch sees none; '
            'on CPUs use --launcher pytorch under torchrun'
        )
    missing = {'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'} - {
        *os.environ
    }
    if missing:
        raise InputError(
            '--launcher pytorch needs the environment variables of torchrun, '
            f'but {", ".join(sorted(missing))} are not set; start it with: '
            'torchrun --nproc_per_node=NUMBER tools/train.py ...'
        )
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
    config.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel',
        device_ids=None,
        broadcast_buffers=False,
        find_unused_parameters=config.get('find_unused_parameters', False),
    )


def leave_processes() -> None:
    """Destroy the process group, if there is one.

    gloo's threads hold tensors after the last collective. A thread that
    releases them while the interpreter exits aborts the process
    (pytorch/pytorch #179291). Call this when the runner is out of scope.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()


def plain_batch_norm(config: Config) -> None:
    """Replace every SyncBN in a model's config by BN, in place."""
    pending, changed = [config.model], 0
    while pending:
        node = pending.pop()
        if isinstance(node, (list, tuple)):
            pending.extend(node)
        elif isinstance(node, dict):
            if node.get('type') == 'SyncBN':
                node['type'] = 'BN'
                changed += 1
            pending.extend(node.values())
    if changed:
        print(f'SyncBN is replaced by BN in this run ({changed} places)')
