"""Evaluate a checkpoint on the test set of its config."""

import argparse
import sys
from pathlib import Path

from mmlaplacian.check_env import check_or_exit

check_or_exit('test.py')

from mmengine.config import DictAction
from mmengine.runner import Runner

from mmlaplacian import apis
from mmlaplacian.errors import InputError


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--work-dir', help='logs and metrics; default: work_dirs/CONFIG'
    )
    parser.add_argument('--out', metavar='FILE.pkl', help='dump predictions')
    parser.add_argument(
        '--show-dir', help='write pictures: ground truth beside predictions'
    )
    parser.add_argument(
        '--tta',
        action='store_true',
        help='average over scales and flips, where the config says how',
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
    # PyTorch's older launcher passes it.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args()
    if args.out and Path(args.out).suffix not in ('.pkl', '.pickle'):
        parser.error(f'--out: expected a .pkl or .pickle file, got {args.out}')
    return args


def test(args):
    config = apis.load_config(args.config, args.cfg_options, args.work_dir)
    scope = config.get('default_scope') or 'mmdet'
    apis.prepare_device(config, args.launcher)
    apis.check_datasets(config, 'test')
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
                f'--tta: {args.config} does not say how, it has no '
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
    apis.check_checkpoint(model, args.checkpoint)
    apis.keep_roi_align_contiguous(model)
    apis.run_explained(runner.test, config)


def main():
    args = parse_args()
    try:
        test(args)
        apis.leave_processes()
    except InputError as error:
        sys.exit(f'test.py: {error}')


if __name__ == '__main__':
    main()
