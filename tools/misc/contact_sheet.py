"""Arrange the first pictures of a folder in one picture."""

import argparse
import sys
from pathlib import Path

import cv2
import numpy as np


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'folder', help='folder of pictures, such as the --show-dir of test.py'
    )
    parser.add_argument('out', help='picture file to write')
    parser.add_argument(
        '--columns', type=int, default=2, help='pictures beside each other'
    )
    parser.add_argument(
        '--rows', type=int, default=4, help='pictures below each other'
    )
    return parser.parse_args()


def main():
    args = parse_args()
    paths = sorted(
        path
        for path in Path(args.folder).rglob('*')
        if path.suffix in ('.jpg', '.png')
    )
    pictures = [cv2.imread(str(path)) for path in paths]
    pictures = [p for p in pictures if p is not None]
    pictures = pictures[: args.columns * args.rows]
    if not pictures:
        sys.exit(f'contact_sheet.py: no picture in {args.folder}')
    height = max(p.shape[0] for p in pictures) + 8
    width = max(p.shape[1] for p in pictures) + 8
    rows = -(-len(pictures) // args.columns)
    sheet = np.full((rows * height, args.columns * width, 3), 255, np.uint8)
    for i, picture in enumerate(pictures):
        top = i // args.columns * height + 4
        left = i % args.columns * width + 4
        area = np.s_[top : top + picture.shape[0], left:]
        sheet[area][:, : picture.shape[1]] = picture
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(args.out, sheet)
    print(args.out)


if __name__ == '__main__':
    main()
