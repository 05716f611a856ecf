"""Crops of one real microscopy image with hand-made instance masks.

The image ships with stardist: fluorescent nuclei of the 2018 Data Science Bowl
(BBBC038, CC0), 512 x 512, 125 nuclei. Training crops come from its left part,
validation crops from its right part: they share no pixel, but they share the
image, so scores say how well this image is learnt, no more.
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
#: Smaller pieces of nuclei that a crop cuts off are background.
MIN_PIECE = 20


def load_image() -> tuple[np.ndarray, np.ndarray]:
    """The picture, uint8 (512, 512), and its instance numbers, 0 for none.

    Raises:
        FileNotFoundError: stardist, or a file in it, is missing.
    """
    raw, instances = (
        cv2.imread(str(find_file('stardist', name)), cv2.IMREAD_UNCHANGED)
        for name in ('img2d.tif', 'mask2d.tif')
    )
    # The range of brightness is that of the training part alone.
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
    """Crops of both splits, which share no pixel.

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
        out: Folder to write to; made if missing.

    Returns:
        For each split, what ``write_split`` counted.

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
