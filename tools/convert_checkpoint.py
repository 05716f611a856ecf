"""Convert checkpoints for the configs of this project.

convert_checkpoint.py backbone IN OUT      extract a trained backbone
convert_checkpoint.py warm-start IN OUT    initialise from PVT or PVTv2 weights
convert_checkpoint.py publish IN OUT       keep the weights, hash in the name
"""

import argparse
import sys

from mmlaplacian.check_env import check_or_exit

check_or_exit('convert_checkpoint.py')

from mmlaplacian.checkpoints import convert
from mmlaplacian.errors import InputError
from mmlaplacian.models import ARCHS

#: PVT-Tiny covers 90.5 % of tiny, and PVTv2-B1 99.8 % (docs/weights.md). Below
#: half, most of the model stays random.
MIN_SHARE = 0.5


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest='command', required=True)
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument('source', metavar='IN', help='checkpoint to read')
    files.add_argument('out', metavar='OUT', help='checkpoint to write')
    files.add_argument(
        '--force', action='store_true', help='overwrite an existing file'
    )
    command = commands.add_parser(
        'backbone',
        parents=[files],
        help='extract the backbone of a classifier or detector',
    )
    command.add_argument(
        '--arch', choices=ARCHS, help='size; default: inferred from the shapes'
    )
    command.add_argument(
        '--ema', action='store_true', help='use the averaged weights'
    )
    command = commands.add_parser(
        'warm-start',
        parents=[files],
        help='map the weights of a PVT or PVTv2',
    )
    command.add_argument(
        '--arch', choices=ARCHS, required=True, help='size of the new model'
    )
    command.add_argument(
        '--min-share',
        type=float,
        default=MIN_SHARE,
        help='fail if a smaller share of the parameters is covered, 0 to 1; '
        'default: %(default)s',
    )
    command.add_argument(
        '--trust',
        action='store_true',
        help='unpickle the file, which may run code in it',
    )
    command = commands.add_parser(
        'publish',
        parents=[files],
        help='strip a checkpoint; OUT.pth becomes OUT-xxxxxxxx.pth',
    )
    command.add_argument(
        '--safetensors',
        action='store_true',
        help='write a .safetensors file beside it',
    )
    return parser.parse_args()


def backbone(args):
    convert.check_output(args.out, args.force)
    content, dropped = convert.extract_backbone(
        args.source, args.arch, args.ema
    )
    for name, tensor in dropped.items():
        print(f'skipped: {name} {tuple(tensor.shape)}')
    convert.write_checkpoint(content, args.out, args.force)
    print(
        f'{args.out}: LaplacianFormer {content["meta"]["arch"]}, '
        f'{len(content["state_dict"])} tensors'
    )


def warm_start(args):
    convert.check_output(args.out, args.force)
    content, report = convert.warm_start(args.source, args.arch, args.trust)
    print(report.text())
    if report.share < args.min_share:
        raise InputError(
            f'{args.source} covers {report.share:.2%} of the parameters of '
            f'{args.arch}, less than --min-share {args.min_share:.0%}; '
            'nothing was written'
        )
    convert.write_checkpoint(content, args.out, args.force)
    print(
        f'{args.out}: {report.summary()} from {args.source}, the rest '
        f'initialised with seed {content["meta"]["seed"]}; '
        f'--min-share was {args.min_share:.0%}'
    )


def publish(args):
    files, dropped = convert.publish(
        args.source, args.out, args.safetensors, args.force
    )
    if dropped:
        print(f'skipped: {", ".join(dropped)}')
    for file in files:
        print(f'{file}: {file.stat().st_size / 1e6:.1f} MB')


COMMANDS = {
    'backbone': backbone,
    'warm-start': warm_start,
    'publish': publish,
}


def main():
    args = parse_args()
    try:
        COMMANDS[args.command](args)
    except (InputError, OSError) as error:
        sys.exit(f'convert_checkpoint.py: {error}')


if __name__ == '__main__':
    main()
