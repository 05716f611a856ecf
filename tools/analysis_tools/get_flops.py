"""Print the parameters and multiply-adds of a config's model.

No dataset and no weights are needed. Detectors run on an artificial image.
"""

import argparse
import sys

from mmlaplacian.check_env import check_or_exit

check_or_exit('get_flops.py')

import torch
from mmengine.config import DictAction
from mmengine.registry import MODELS

from mmlaplacian.apis import count
from mmlaplacian.checks.weights import check_pretrained
from mmlaplacian.errors import InputError
from mmlaplacian.launch.config import load_config, use_scope
from mmlaplacian.launch.processes import plain_batch_norm

#: Image sizes that published tables use, by library.
SHAPES = dict(mmdet=(800, 1344), mmseg=(512, 512), mmpretrain=(224, 224))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--shape',
        nargs=2,
        type=int,
        metavar=('HEIGHT', 'WIDTH'),
        help='image size; default: 224 224 for the backbone, and for the '
        'whole model 800 1344 (detectors), 512 512 (segmentation) or '
        '224 224 (classifiers)',
    )
    parser.add_argument(
        '--backbone', action='store_true', help='count the backbone alone'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override config entries',
    )
    return parser.parse_args()


def build(config, backbone_only: bool):
    """Build the model for a call with images."""
    check_pretrained(config, from_scratch=True)
    config.model.backbone.init_cfg = None
    plain_batch_norm(config)
    part = config.model.backbone if backbone_only else config.model
    return MODELS.build(part).eval()


def artificial_samples(height: int, width: int) -> list:
    """Metadata that a detector needs for an artificial image."""
    from mmdet.structures import DetDataSample

    shapes = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    metainfo = dict.fromkeys(shapes, (height, width))
    return [DetDataSample(metainfo=dict(metainfo, scale_factor=(1.0, 1.0)))]


def main():
    args = parse_args()
    try:
        config = load_config(args.config, args.cfg_options)
    except InputError as error:
        sys.exit(f'get_flops.py: {error}')
    scope = use_scope(config)
    default = SHAPES[scope]
    shape = args.shape or ((224, 224) if args.backbone else default)
    inputs = [torch.zeros(1, 3, *shape)]
    if scope == 'mmdet' and not args.backbone:
        inputs.append(artificial_samples(*shape))
    result = count(build(config, args.backbone), *inputs)
    what = config.model.backbone.type if args.backbone else config.model.type
    print(f'{what} at {shape[0]} x {shape[1]}, one image')
    print(f'parameters        {result.parameters / 1e6:9.2f} M')
    print(f'core multiply-adds{result.core / 1e9:9.2f} G')
    for part, number in result.extra.items():
        print(f'  + {part:14s}{number / 1e9:9.2f} G')
    print(f'full multiply-adds{result.full / 1e9:9.2f} G')
    print(
        'core: convolutions, linear layers, kernel-times-value products; '
        '1 multiply-add counts 1'
    )


if __name__ == '__main__':
    main()
