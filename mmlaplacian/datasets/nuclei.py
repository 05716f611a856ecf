"""Crops of one real microscopy image with hand-made instance masks.

The image ships with stardist: fluorescent nuclei of the 2018 Data Science Bowl
(BBBC038, CC0), 512 x 512, 125 nuclei. Training crops come from its left part
and validation crops from its right part. They share no pixel, but they are
from the same image, so scores show only how well this image is learnt.
"""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from .coco import write_split
from .packages import find_file

CLASSES = ('nucleus',)
CROP = 128
#: First column of the validation part.
BORDER = 320
TRAIN_STRIDE = 24
#: Smallest number of pixels of a nucleus at the edge of a crop.
MIN_PIECE = 20


def load_image() -> tuple[np.ndarray, np.ndarray]:
    """Read the picture, uint8 (512, 512), and its instance map, 0 for none.

    Raises:
        FileNotFoundError: stardist, or a file in it, is missing.
    """
    raw, instances = (
        cv2.imread(str(find_file('stardist', name)), cv2.IMREAD_UNCHANGED)
        for name in ('img2d.tif', 'mask2d.tif')
    )
    # The brightness range is taken from the training part only.
    low, high = np.percentile(raw[:, :BORDER], (1, 99.8))
    picture = (raw.astype(np.float32) - low) / (high - low) * 255
    return picture.clip(0, 255).astype(np.uint8), instances


def _crops(
    picture: np.ndarray,
    instances: np.ndarray,
    columns: range,
    rows: range,
    width: int,
) -> Iterator[tuple[np.ndarray, list[tuple[int, np.ndarray]]]]:
    for top in rows:
        for left in columns:
            area = np.s_[top : top + CROP, left : left + width]
            masks = [
                instances[area] == number
                for number in np.unique(instances[area])
                if number
            ]
            found = [(0, mask) for mask in masks if mask.sum() >= MIN_PIECE]
            yield picture[area], found


def cut(
    picture: np.ndarray, instances: np.ndarray
) -> dict[str, Iterator[tuple[np.ndarray, list[tuple[int, np.ndarray]]]]]:
    """Cut crops for both splits, which share no pixel.

    Args:
        picture: (H, W).
        instances: Instance numbers, (H, W), 0 for none.

    Returns:
        For ``train`` overlapping 128 x 128 crops of columns 0 to 319, for
        ``val`` crops of 128 rows that tile the columns from 320 on.
    """
    height, width = picture.shape
    return dict(
        train=_crops(
            picture,
            instances,
            range(0, BORDER - CROP + 1, TRAIN_STRIDE),
            range(0, height - CROP + 1, TRAIN_STRIDE),
            CROP,
        ),
        val=_crops(
            picture,
            instances,
            range(BORDER, width, width - BORDER),
            range(0, height, CROP),
            width - BORDER,
        ),
    )


def write_nuclei(out: str | Path) -> dict[str, dict[str, int]]:
    """Write the crops as :func:`mmlaplacian.datasets.coco.write_split` does.

    Args:
        out: Target folder; created if missing.

    Returns:
        For each split, the counts of ``write_split``.

    Raises:
        FileNotFoundError: stardist is missing.
    """
    return {
        split: write_split(
            out,
            split,
            scenes,
            CLASSES,
            'Crops of one image of BBBC038 (CC0), from stardist',
        )
        for split, scenes in cut(*load_image()).items()
    }
