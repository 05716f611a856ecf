"""Make or check the data that the configs train on.

prepare_data.py digits            real digits, composed scenes
prepare_data.py digits-classes    one real digit a picture, for pretraining
prepare_data.py nuclei            crops of a real microscopy image
prepare_data.py check coco        what is missing in data/coco
prepare_data.py check ade20k      what is missing in data/ade
prepare_data.py check PATH        the same for your own data
"""

import argparse
import sys
import time

from mmlaplacian.datasets import check, digits, nuclei

#: What was written for a split.
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
        '--side', type=int, default=192, help='height and width, 192 to 256'
    )
    command.add_argument('--seed', type=int, default=0)
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
        help='that of "digits", so that both leave out the same digits',
    )
    command = commands.add_parser(
        'nuclei', help='real fluorescent nuclei: boxes, masks, semantics'
    )
    command.add_argument('--out', default='data/nuclei', help='target folder')
    command = commands.add_parser('check', help='say what a dataset lacks')
    command.add_argument('dataset', help='coco, ade20k or a folder')
    command.add_argument(
        '--root', help='folder of coco or ade20k, where it is not the usual'
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


def look(args):
    if args.dataset in check.KNOWN:
        root = args.root or check.KNOWN[args.dataset][0]
        found, troubles = [], check.check_known(args.dataset, root)
        tree = check.expected_tree(args.dataset)
    else:
        root = args.dataset
        found, troubles = check.check_own(root)
        tree = check.OWN_TREES
    print('\n'.join(found))
    if troubles:
        print(tree)
        sys.exit('\n'.join(f'missing or wrong: {line}' for line in troubles))
    print(f'{root}: complete')


def main():
    args = parse_args()
    if args.command == 'check':
        look(args)
    else:
        make(args)


if __name__ == '__main__':
    main()
