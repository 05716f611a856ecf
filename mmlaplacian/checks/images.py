"""Image files: which of them exist, and whether they can be decoded."""

import os
from collections.abc import Iterable
from pathlib import Path

import cv2

from ..errors import InputError

#: Image files whose headers are read, evenly spread over a dataset.
MAX_HEADERS = 2000


def list_files(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Sizes in bytes of the files that exist; each folder is listed once.

    Args:
        folder: Folder that the names are relative to.
        names: File names, also with folders.

    Returns:
        Size by name, for the names that exist.
    """
    names = list(names)
    sizes: dict[str, int] = {}
    for parent in {os.path.dirname(name) for name in names}:
        try:
            with os.scandir(folder / parent) as entries:
                for entry in entries:
                    if entry.is_file():
                        name = os.path.join(parent, entry.name)
                        sizes[name] = entry.stat().st_size
        except OSError:
            continue
    return {name: sizes[name] for name in names if name in sizes}


def check_images(key: str, folder: Path, names: Iterable[str]) -> None:
    """Raise unless all images exist and look like images.

    Every file must exist and have content. The headers of up to
    :data:`MAX_HEADERS` files must be those of an image format that OpenCV
    decodes.

    Args:
        key: Config key of the dataset, for messages.
        folder: Folder that the names are relative to.
        names: File names.

    Raises:
        InputError: An image is missing, empty or not an image.
    """
    names = list(names)
    sizes = list_files(folder, names)
    if missing := [name for name in names if name not in sizes]:
        raise InputError(
            f'{key}: {len(missing)} of {len(names)} images are missing from '
            f'{folder.absolute()}, such as {missing[0]}. Restore them, or '
            'correct data_root and data_prefix with --cfg-options'
        )
    step = max(len(names) // MAX_HEADERS, 1)
    broken = [name for name in names if sizes[name] == 0] or [
        name
        for name in names[::step]
        if not cv2.haveImageReader(str(folder / name))
    ]
    if broken:
        raise InputError(
            f'{key}: the image {folder / broken[0]} is empty or cannot be '
            f'decoded ({len(broken)} such images were found). Restore it, or '
            'remove it from the dataset'
        )
