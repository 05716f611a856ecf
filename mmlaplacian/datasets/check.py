"""Say what a dataset folder lacks."""

import json
from collections import Counter
from pathlib import Path

from ..errors import InputError
from . import IMAGE_SUFFIXES
from .annotations import read_categories

#: Folder that the configs name, and for each part of it the number of files
#: (None: it is one file).
KNOWN = {
    'coco': (
        'data/coco',
        {
            'annotations/instances_train2017.json': None,
            'annotations/instances_val2017.json': None,
            'train2017': (118_287, '.jpg'),
            'val2017': (5_000, '.jpg'),
        },
    ),
    'ade20k': (
        'data/ade/ADEChallengeData2016',
        {
            'images/training': (20_210, '.jpg'),
            'images/validation': (2_000, '.jpg'),
            'annotations/training': (20_210, '.png'),
            'annotations/validation': (2_000, '.png'),
        },
    ),
}

OWN_TREES = """Expected, for detection (COCO format):
  PATH/annotations/train.json     images, annotations, categories
  PATH/annotations/val.json
  PATH/train/                     the images that train.json names
  PATH/val/
or, for segmentation:
  PATH/images/train/NAME.jpg      PATH/images/val/
  PATH/annotations/train/NAME.png PATH/annotations/val/   one label a pixel"""


def expected_tree(name: str) -> str:
    """The tree of a known dataset, a line for each part."""
    root, parts = KNOWN[name]
    lines = [f'Expected in {root}:']
    for part, files in parts.items():
        what = f'/  {files[0]} {files[1]} files' if files else ''
        lines.append(f'  {part}{what}')
    return '\n'.join(lines)


def check_known(name: str, root: str | Path) -> list[str]:
    """What a known dataset lacks, a line for each part.

    Args:
        name: A key of :data:`KNOWN`.
        root: Its folder.

    Returns:
        Troubles; empty where it is complete.
    """
    troubles = []
    for part, files in KNOWN[name][1].items():
        path = Path(root, part)
        if files is None:
            troubles += _check_annotations(path)
        elif not path.is_dir():
            troubles.append(f'{path}: no such folder')
        else:
            number, suffix = files
            found = sum(p.suffix == suffix for p in path.iterdir())
            if found != number:
                troubles.append(
                    f'{path}: expected {number} {suffix} files, found {found}'
                )
    return troubles


def _check_annotations(path: Path) -> list[str]:
    if not path.is_file():
        return [f'{path}: no such file']
    try:
        read_categories(path)
    except InputError as error:
        return [str(error)]
    return []


def check_own(root: str | Path) -> tuple[list[str], list[str]]:
    """Look at a folder in the format of COCO, or of images and label maps.

    Args:
        root: The folder.

    Returns:
        What was found, and the troubles; a line each.
    """
    root = Path(root)
    if not root.is_dir():
        return [], [f'{root.absolute()}: no such folder']
    files = sorted({*root.glob('*.json'), *root.glob('annotations/*.json')})
    if files:
        reports = [_check_coco(root, path) for path in files]
    elif (root / 'images').is_dir() and (root / 'annotations').is_dir():
        splits = sorted(
            p for p in (root / 'annotations').iterdir() if p.is_dir()
        )
        reports = [_check_maps(root, split.name) for split in splits]
    else:
        return [], [f'{root}: no .json file, and no images and annotations']
    return (
        [line for found, _ in reports for line in found],
        [line for _, troubles in reports for line in troubles],
    )


def _check_coco(root: Path, path: Path) -> tuple[list[str], list[str]]:
    try:
        categories = read_categories(path)
    except InputError as error:
        return [], [str(error)]
    coco = json.loads(path.read_text())
    names = [category['name'] for category in categories]
    objects = Counter(a['category_id'] for a in coco['annotations'])
    found = [
        f'{path}: {len(coco["images"])} images, '
        f'{len(coco["annotations"])} objects',
        f'  classes=({", ".join(repr(name) for name in names)},)',
    ]
    found += [
        f'  no object of the class {category["name"]!r}'
        for category in categories
        if not objects[category['id']]
    ]
    troubles = []
    unknown = set(objects) - {category['id'] for category in categories}
    if unknown:
        troubles.append(
            f'{path}: objects of category_id {sorted(unknown)}, which no '
            'category has'
        )
    masks = sum('segmentation' in a for a in coco['annotations'])
    if masks < len(coco['annotations']):
        found.append(
            f'  {masks} objects have masks: boxes only, such as RetinaNet'
        )
    names = [image['file_name'] for image in coco['images']]
    folders = [root, *sorted(p for p in root.rglob('*') if p.is_dir())]
    counts = {f: sum((f / name).is_file() for name in names) for f in folders}
    best = max(counts, key=counts.get)
    missing = [name for name in names if not (best / name).is_file()]
    if counts[best]:
        found.append(f'  images in {best}')
    if missing:
        troubles.append(
            f'{path}: {len(missing)} of {len(names)} images are not in '
            f'{best}, such as {missing[0]}'
        )
    return found, troubles


def _check_maps(root: Path, split: str) -> tuple[list[str], list[str]]:
    pictures, maps = root / 'images' / split, root / 'annotations' / split
    if not pictures.is_dir():
        return [], [f'{pictures}: no such folder, but there is {maps}']
    names = {
        p.stem
        for p in pictures.iterdir()
        if p.suffix.lower() in IMAGE_SUFFIXES
    }
    labelled = {p.stem for p in maps.glob('*.png')}
    found = [f'{pictures}: {len(names)} images, {maps}: {len(labelled)} maps']
    troubles = []
    for what, lone in (
        ('images without a map', names - labelled),
        ('maps without an image', labelled - names),
    ):
        if lone:
            troubles.append(
                f'{split}: {len(lone)} {what}, such as {min(lone)}'
            )
    return found, troubles
