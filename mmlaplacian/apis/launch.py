"""Devices and processes: what mmengine leaves open on a CPU."""

import gc
import os

import torch
from mmengine.config import Config
from mmengine.device import get_device

from ..check_env import check_gpu_ops
from ..errors import InputError


def prepare_device(config: Config, launcher: str, amp: bool = False) -> None:
    """Make a config fit the device at hand.

    mmengine starts ``--launcher pytorch`` on accelerators only: on a CPU this
    starts gloo and wraps the model without device ids. SyncBN becomes BN on a
    CPU, which has none, and in a single process, where both are the same.

    Args:
        config: Changed in place.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        amp: Train in mixed precision.

    Raises:
        InputError: The device cannot do what is asked.
    """
    device = get_device()
    if (config.get('default_scope') or 'mmdet') == 'mmdet':
        check_gpu_ops()
    if amp:
        if device == 'cpu':
            raise InputError(
                '--amp needs an accelerator and PyTorch sees none here; '
                'train without --amp (float32)'
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
            f'--launcher {launcher} needs accelerators and PyTorch sees none '
            'here; on CPUs use --launcher pytorch under torchrun'
        )
    missing = {'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'} - {
        *os.environ
    }
    if missing:
        raise InputError(
            '--launcher pytorch expects the variables of torchrun, but '
            f'{", ".join(sorted(missing))} are not set; start it with: '
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
    """Leave the process group, if there is one, after the last collective.

    gloo's threads still hold tensors then; one that drops its own while the
    interpreter ends aborts a process that has done its work
    (pytorch/pytorch #179291). Call it when the runner is out of scope.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()


def plain_batch_norm(config: Config) -> None:
    """Turn every SyncBN of a model's config into BN, in place."""
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
        print(f'SyncBN is BN in this run ({changed} places)')
