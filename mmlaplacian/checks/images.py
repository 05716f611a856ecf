"""Image files: which of them exist, and whether they can be decoded."""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import cv2

from ..errors import InputError

#: Headers that are read at least, of files evenly spread over a dataset.
MIN_HEADERS = 2000


def list_files(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Sizes in bytes of the files that exist; each folder is listed once.

    Args:
        folder: Folder that the names are relative to.
        names: File names, also with folders.

    Returns:
        Size by name, for the names that exist.
    """
    by_parent = defaultdict(list)
    for name in names:
        by_parent[os.path.dirname(name)].append(name)
    sizes: dict[str, int] = {}
    for parent, children in by_parent.items():
        try:
            with os.scandir(folder / parent) as entries:
                files = {entry.name: entry for entry in entries}
        except OSError:
            continue
        for name in children:
            entry = files.get(os.path.basename(name))
            try:
                if entry and entry.is_file():
                    sizes[name] = entry.stat().st_size
            except OSError:
                # A link that leads nowhere is a missing image.
                continue
    return sizes


def find_images(root: Path, names: Iterable[str]) -> tuple[Path, set[str]]:
    """Find the folder at or below ``root`` that holds most of the images.

    The tree is walked once, including linked folders.

    Args:
        root: Folder to search.
        names: File names, also with folders.

    Returns:
        The folder, or ``root`` if no image is found, and the names that
        exist in it.
    """
    names = list(names)
    wanted = {os.path.normpath(name) for name in names}
    depths = {name.count(os.sep) for name in wanted}
    present: dict[str, set[str]] = defaultdict(set)
    visited = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in visited:
            folders.clear()
            continue
        visited.add(real)
        parts = Path(folder).relative_to(root).parts
        for depth in depths:
            if depth > len(parts):
                continue
            split = len(parts) - depth
            base = os.path.join('', *parts[:split])
            for file in files:
                name = os.path.join('', *parts[split:], file)
                if name in wanted:
                    present[base].add(name)
    best = root / max(
        sorted(present), key=lambda base: len(present[base]), default=''
    )
    return best, {name for name in names if (best / name).is_file()}


def check_images(
    key: str, folder: Path, names: Iterable[str], decoded_by_opencv: bool
) -> None:
    """Raise unless all images exist, have content and look like images.

    Args:
        key: Config key of the dataset, for messages.
        folder: Folder that the names are relative to.
        names: File names.
        decoded_by_opencv: Require that the headers of a sample of at least
            :data:`MIN_HEADERS` files are those of a format that OpenCV
            decodes.

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
    broken = [name for name in names if sizes[name] == 0]
    if not broken and decoded_by_opencv:
        step = max(len(names) // MIN_HEADERS, 1)
        broken = [
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


def loads_with_opencv(dataset: dict) -> bool:
    """True if the pipeline of a dataset decodes its images with OpenCV."""
    return any(
        step.get('type', '').split('.')[-1] == 'LoadImageFromFile'
        and step.get('imdecode_backend', 'cv2') == 'cv2'
        for step in dataset.get('pipeline') or ()
    )
