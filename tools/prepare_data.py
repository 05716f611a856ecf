"""Make or check the data that the configs train on.

prepare_data.py digits [--out data/digits]   real digits, composed scenes
"""

import argparse
import sys
import time

from mmlaplacian.datasets import digits


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest='command', required=True)
    command = commands.add_parser(
        'digits', help='scenes of real MNIST digits: boxes, masks, semantics'
    )
    command.add_argument('--out', default='data/digits', help='target folder')
    command.add_argument('--train', type=int, default=2000, help='scenes')
    command.add_argument('--val', type=int, default=200, help='scenes')
    command.add_argument(
        '--side', type=int, default=256, help='height and width, 192 to 256'
    )
    command.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    start = time.time()
    try:
        summary = digits.write_digits(
            args.out,
            dict(train=args.train, val=args.val),
            side=args.side,
            seed=args.seed,
        )
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f'prepare_data.py: {error}')
    for split, counts in summary.items():
        print(
            f'{split}: {counts["scenes"]} scenes; digits by mask area: '
            f'{counts["small"]} small, {counts["medium"]} medium, '
            f'{counts["large"]} large'
        )
    print(f'{args.out}: written in {time.time() - start:.1f} s')


if __name__ == '__main__':
    main()
