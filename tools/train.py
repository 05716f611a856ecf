"""Train the model of a config."""

import argparse
import sys

from mmlaplacian.check_env import check_or_exit

check_or_exit('train.py')

from mmengine.config import DictAction
from mmengine.runner import Runner, find_latest_checkpoint

from mmlaplacian.checks.datasets import check_datasets
from mmlaplacian.checks.models import check_batch_norm
from mmlaplacian.checks.weights import check_checkpoint, check_pretrained
from mmlaplacian.errors import InputError
from mmlaplacian.launch.config import load_config
from mmlaplacian.launch.layout import keep_roi_align_contiguous
from mmlaplacian.launch.processes import leave_processes, prepare_device


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--work-dir',
        help='folder for logs and checkpoints; default: work_dirs/CONFIG',
    )
    parser.add_argument(
        '--amp', action='store_true', help='mixed precision (accelerators)'
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate with the total batch size',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='continue from a checkpoint; without a value, from the newest '
        'one of the work directory',
    )
    parser.add_argument(
        '--from-scratch',
        action='store_true',
        help='start from random weights instead of the pretrained ones',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override config entries, such as train_dataloader.batch_size=4',
    )
    parser.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='how several processes were started',
    )
    # PyTorch's older launcher passes this option.
    parser.add_argument(
        '--local_rank',
        '--local-rank',
        type=int,
        default=0,
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def build_config(args):
    config = load_config(args.config, args.cfg_options, args.work_dir)
    prepare_device(config, args.launcher, amp=args.amp)
    if args.auto_scale_lr:
        if 'base_batch_size' not in config.get('auto_scale_lr', {}):
            raise InputError(
                '--auto-scale-lr: the config must contain auto_scale_lr='
                'dict(base_batch_size=...), the total batch size that its '
                'learning rate belongs to'
            )
        config.auto_scale_lr.enable = True
    if args.resume:
        found = args.resume
        if found == 'auto':
            found = find_latest_checkpoint(config.work_dir)
        config.resume = found is not None
        if found:
            config.load_from = found
        else:
            print(f'train.py: nothing to resume in {config.work_dir}')
    return config


def train(args):
    config = build_config(args)
    check_pretrained(config, from_scratch=args.from_scratch)
    check_datasets(config, 'train', 'val')
    check_batch_norm(config)
    backbone = config.model.get('backbone', {})
    if not config.load_from and not backbone.get('init_cfg'):
        print('train.py: the backbone starts from random weights')
    runner = Runner.from_cfg(config)
    keep_roi_align_contiguous(runner.model)
    if config.load_from:
        model = getattr(runner.model, 'module', runner.model)
        # Fine-tuning may change the heads; resuming may not.
        prefix = None if config.resume else 'backbone.'
        check_checkpoint(model, config.load_from, prefix)
    runner.train()


def main():
    args = parse_args()
    try:
        train(args)
        leave_processes()
    except InputError as error:
        sys.exit(f'train.py: {error}')


if __name__ == '__main__':
    main()
