"""Label maps of semantic segmentation."""

from pathlib import Path

import cv2
import numpy as np

from ..datasets import IMAGE_SUFFIXES
from ..errors import InputError
from .coco_files import quote_names

#: Label maps that are read at least, evenly spread over a dataset.
MIN_MAPS = 200


def check_labels(
    key: str,
    folder: Path,
    suffix: str,
    classes: list[str],
    ignore_index: int,
    reduce_zero_label: bool,
) -> None:
    """Raise unless the labels in a sample of the label maps are classes.

    The sample has at least :data:`MIN_MAPS` maps if there are that many.

    Args:
        key: Config key of the dataset, for messages.
        folder: Folder of the label maps.
        suffix: File name suffix of the maps.
        classes: Class names.
        ignore_index: Label of pixels to ignore.
        reduce_zero_label: Label 0 is ignored and the others shift down.

    Raises:
        InputError: There is no map, a map cannot be decoded, or it holds a
            label outside the classes.
    """
    # Preparing data works without mmcv.
    import mmcv

    maps = sorted(folder.rglob(f'*{suffix}'))
    if not maps:
        raise InputError(
            f'{key}: expected label maps *{suffix} in {folder.absolute()}, '
            'found none; set data_prefix.seg_map_path and seg_map_suffix'
        )
    largest = len(classes) if reduce_zero_label else len(classes) - 1
    for path in maps[:: max(len(maps) // MIN_MAPS, 1)]:
        try:
            # Pillow keeps the class numbers of palette images, as in mmseg.
            label_map = mmcv.imfrombytes(
                path.read_bytes(), flag='unchanged', backend='pillow'
            )
        except (OSError, ValueError, cv2.error) as error:
            raise InputError(
                f'{key}: the label map {path} cannot be decoded ({error}); '
                'restore it, or remove it and its image from the dataset'
            ) from error
        wrong = [
            int(label)
            for label in np.unique(label_map)
            if label > largest and label != ignore_index
        ]
        if wrong:
            raise InputError(
                f'{key}: {path} holds the labels {wrong[:10]}, expected 0 to '
                f'{largest} for {len(classes)} classes '
                f'({quote_names(classes)}), or {ignore_index} to be ignored'
            )


def describe_map_folder(root: Path, split: str) -> tuple[list[str], list[str]]:
    """Compare images and label maps of one split of a folder.

    Args:
        root: Folder with ``images`` and ``annotations``.
        split: Name of the split.

    Returns:
        Findings and problems, one line each.
    """
    pictures, maps = root / 'images' / split, root / 'annotations' / split
    if not pictures.is_dir():
        return [], [f'{pictures}: no such folder, but there is {maps}']
    images = {
        path.stem
        for path in pictures.iterdir()
        if path.suffix.lower() in IMAGE_SUFFIXES
    }
    labelled = {path.stem for path in maps.glob('*.png')}
    found = [f'{pictures}: {len(images)} images, {maps}: {len(labelled)} maps']
    problems = [
        f'{split}: {len(names)} {what}, such as {min(names)}'
        for what, names in (
            ('images without a map', images - labelled),
            ('maps without an image', labelled - images),
        )
        if names
    ]
    return found, problems
