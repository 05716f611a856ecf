"""Draw the training images of a config after augmentation."""

import argparse
import sys
from pathlib import Path

from mmlaplacian.check_env import check_or_exit

check_or_exit('browse_dataset.py')

from mmengine.config import DictAction
from mmengine.registry import DATASETS, VISUALIZERS

from mmlaplacian.checks.datasets import check_datasets
from mmlaplacian.errors import InputError
from mmlaplacian.launch.config import load_config, use_scope


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--out-dir',
        default='browse',
        help='target folder; default: %(default)s',
    )
    parser.add_argument(
        '--number',
        type=int,
        default=20,
        help='number of images; default: %(default)s',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override config entries',
    )
    return parser.parse_args()


def drawable(sample):
    """Convert mmdet's box and mask types to arrays."""
    instances = sample.get('gt_instances')
    if instances is not None:
        boxes = instances.bboxes
        instances.bboxes = getattr(boxes, 'tensor', boxes)
        if 'masks' in instances:
            instances.masks = instances.masks.to_ndarray().astype(bool)
    return sample


def browse(args):
    config = load_config(args.config, args.cfg_options)
    check_datasets(config, 'train')
    scope = use_scope(config)
    dataset = DATASETS.build(config.train_dataloader.dataset)
    visualizer = VISUALIZERS.build({**config.visualizer, 'vis_backends': None})
    visualizer.dataset_meta = dataset.metainfo
    draw = getattr(
        visualizer,
        'visualize_cls' if scope == 'mmpretrain' else 'add_datasample',
    )
    out_dir = Path(args.out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    for i in range(min(args.number, len(dataset))):
        item = dataset[i]
        sample = drawable(item['data_samples'])
        name = Path(sample.img_path).name
        picture = item['inputs'].permute(1, 2, 0).numpy()[..., ::-1]
        draw(
            name=name,
            image=picture,
            data_sample=sample,
            draw_pred=False,
            out_file=str(out_dir / name),
        )
    print(f'{min(args.number, len(dataset))} pictures in {out_dir}')


def main():
    args = parse_args()
    try:
        browse(args)
    except InputError as error:
        sys.exit(f'browse_dataset.py: {error}')


if __name__ == '__main__':
    main()
