"""Create or check the data that the configs train on.

prepare_data.py digits            scenes composed of real digits
prepare_data.py digits-classes    pictures of one real digit, for pretraining
prepare_data.py nuclei            crops of a real microscopy image
prepare_data.py check coco        list what is missing in data/coco
prepare_data.py check ade20k      list what is missing in data/ade
prepare_data.py check PATH        check your own data
"""

import argparse
import sys
import time

from mmlaplacian.checks import folders
from mmlaplacian.datasets import digits, nuclei

#: Summary of a split.
SCENES = (
    '{scenes} scenes; objects by mask area: {small} small, {medium} medium, '
    '{large} large'
)
PICTURES = '{pictures} pictures of one digit'


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest='command', required=True)
    command = commands.add_parser(
        'digits', help='scenes of real MNIST digits: boxes, masks, semantics'
    )
    command.add_argument('--out', default='data/digits', help='target folder')
    command.add_argument('--train', type=int, default=2000, help='scenes')
    command.add_argument('--val', type=int, default=200, help='scenes')
    command.add_argument(
        '--side',
        type=int,
        default=192,
        help='height and width in pixels, 192 to 256; default: %(default)s',
    )
    command.add_argument(
        '--seed', type=int, default=0, help='seed; default: %(default)s'
    )
    command = commands.add_parser(
        'digits-classes', help='pictures of one digit, a folder for each class'
    )
    command.add_argument(
        '--out', default='data/digits-classes', help='target folder'
    )
    command.add_argument('--train', type=int, default=12000, help='pictures')
    command.add_argument('--val', type=int, default=1000, help='pictures')
    command.add_argument(
        '--side', type=int, default=64, help='height and width'
    )
    command.add_argument(
        '--seed',
        type=int,
        default=0,
        help='seed; use that of "digits" so that both split the digits alike',
    )
    command = commands.add_parser(
        'nuclei', help='real fluorescent nuclei: boxes, masks, semantics'
    )
    command.add_argument('--out', default='data/nuclei', help='target folder')
    command = commands.add_parser(
        'check', help='list what is missing or wrong in a dataset'
    )
    command.add_argument('dataset', help='coco, ade20k or a folder')
    command.add_argument(
        '--root',
        help='folder of coco or ade20k; default: the one in the configs',
    )
    return parser.parse_args()


def make(args):
    start = time.time()
    try:
        if args.command == 'nuclei':
            summary = nuclei.write_nuclei(args.out)
        else:
            sizes = dict(train=args.train, val=args.val)
            classes = args.command == 'digits-classes'
            write = digits.write_classes if classes else digits.write_digits
            summary = write(args.out, sizes, side=args.side, seed=args.seed)
    except (OSError, ValueError) as error:
        sys.exit(f'prepare_data.py: {error}')
    for split, counts in summary.items():
        text = PICTURES if args.command == 'digits-classes' else SCENES
        print(f'{split}: {text.format(**counts)}')
    print(f'{args.out}: written in {time.time() - start:.1f} s')


def check(args):
    if args.dataset in folders.KNOWN:
        root = args.root or folders.KNOWN[args.dataset][0]
        found, problems = [], folders.check_known(args.dataset, root)
        layout = folders.known_layout(args.dataset)
    else:
        root = args.dataset
        found, problems = folders.check_own(root)
        layout = folders.OWN_LAYOUTS
    print('\n'.join(found))
    if problems:
        print(layout)
        sys.exit('\n'.join(f'missing or wrong: {line}' for line in problems))
    print(f'{root}: complete')


def main():
    args = parse_args()
    if args.command == 'check':
        check(args)
    else:
        make(args)


if __name__ == '__main__':
    main()
