"""Evaluate a checkpoint on the test set of its config."""

import argparse
import sys
from pathlib import Path

from mmlaplacian.check_env import check_or_exit

check_or_exit('test.py')

from mmengine.config import DictAction
from mmengine.runner import Runner

from mmlaplacian.checks.datasets import check_datasets
from mmlaplacian.checks.weights import check_checkpoint
from mmlaplacian.errors import InputError
from mmlaplacian.launch.config import load_config, scope_of
from mmlaplacian.launch.layout import keep_roi_align_contiguous
from mmlaplacian.launch.processes import leave_processes, prepare_device


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--work-dir',
        help='folder for logs and metrics; default: work_dirs/CONFIG',
    )
    parser.add_argument(
        '--out', metavar='FILE.pkl', help='write the predictions to a file'
    )
    parser.add_argument(
        '--show-dir',
        help='folder for pictures of ground truth and predictions',
    )
    parser.add_argument(
        '--tta',
        action='store_true',
        help='average over scales and flips, as the config defines',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override config entries',
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
    args = parser.parse_args()
    if args.out and Path(args.out).suffix not in ('.pkl', '.pickle'):
        parser.error(f'--out: expected a .pkl or .pickle file, got {args.out}')
    return args


def test(args):
    config = load_config(args.config, args.cfg_options, args.work_dir)
    scope = scope_of(config)
    prepare_device(config, args.launcher)
    check_datasets(config, 'test')
    config.load_from = args.checkpoint
    config.resume = False
    if args.show_dir:
        show_dir = str(Path(args.show_dir).absolute())
        hook = config.default_hooks.visualization
        if scope == 'mmdet':
            hook.update(draw=True, test_out_dir=show_dir)
        elif scope == 'mmpretrain':
            hook.update(enable=True, interval=1, out_dir=show_dir)
        else:
            hook.draw = True
            config.visualizer.save_dir = show_dir
    if args.tta:
        missing = {'tta_model', 'tta_pipeline'} - set(config)
        if missing:
            raise InputError(
                f'--tta: {args.config} does not define it, it has no '
                f'{" and no ".join(sorted(missing))}'
            )
        config.test_dataloader.dataset.pipeline = config.tta_pipeline
        config.model = dict(config.tta_model, module=config.model)
    if args.out:
        dump = 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'
        evaluators = config.test_evaluator
        if not isinstance(evaluators, list):
            evaluators = [evaluators]
        config.test_evaluator = [
            *evaluators,
            dict(type=dump, out_file_path=args.out),
        ]
    runner = Runner.from_cfg(config)
    model = runner.model
    # Distribution and augmentation wrap the model.
    while hasattr(model, 'module'):
        model = model.module
    check_checkpoint(model, args.checkpoint)
    keep_roi_align_contiguous(model)
    runner.test()


def main():
    args = parse_args()
    try:
        test(args)
        leave_processes()
    except InputError as error:
        sys.exit(f'test.py: {error}')


if __name__ == '__main__':
    main()
