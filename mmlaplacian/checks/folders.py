"""Dataset folders, for ``tools/prepare_data.py check``."""

from pathlib import Path

from ..errors import InputError
from .coco_files import describe_coco, read_categories
from .label_maps import describe_map_folder

#: Folder that the configs name, and its parts: annotation files (None), or
#: folders with the number and the suffix of their files.
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

OWN_LAYOUTS = """Expected, for detection (COCO format):
  PATH/annotations/train.json     images, annotations, categories
  PATH/annotations/val.json
  PATH/train/                     the images that train.json names
  PATH/val/
or, for segmentation:
  PATH/images/train/NAME.jpg      PATH/images/val/
  PATH/annotations/train/NAME.png PATH/annotations/val/   one label a pixel"""


def known_layout(name: str) -> str:
    """Expected files of a known dataset, one line for each part."""
    root, parts = KNOWN[name]
    lines = [f'Expected in {root}:']
    for part, files in parts.items():
        what = f'/  {files[0]} {files[1]} files' if files else ''
        lines.append(f'  {part}{what}')
    return '\n'.join(lines)


def check_known(name: str, root: str | Path) -> list[str]:
    """List the problems of a known dataset.

    Args:
        name: A key of :data:`KNOWN`.
        root: Its folder.

    Returns:
        Problems, one line each; empty for a complete dataset.
    """
    problems = []
    for part, files in KNOWN[name][1].items():
        path = Path(root, part)
        if files is None:
            problems += _check_annotations(path)
        elif not path.is_dir():
            problems.append(f'{path}: no such folder')
        else:
            number, suffix = files
            found = sum(p.suffix == suffix for p in path.iterdir())
            if found != number:
                problems.append(
                    f'{path}: expected {number} {suffix} files, found {found}'
                )
    return problems


def _check_annotations(path: Path) -> list[str]:
    if not path.is_file():
        return [f'{path}: no such file']
    try:
        read_categories(path)
    except InputError as error:
        return [str(error)]
    return []


def check_own(root: str | Path) -> tuple[list[str], list[str]]:
    """Describe a folder in COCO format, or one of images and label maps.

    Args:
        root: The folder.

    Returns:
        Findings and problems, one line each.
    """
    root = Path(root)
    if not root.is_dir():
        return [], [f'{root.absolute()}: no such folder']
    files = sorted({*root.glob('*.json'), *root.glob('annotations/*.json')})
    if files:
        reports = [describe_coco(root, path) for path in files]
    elif (root / 'images').is_dir() and (root / 'annotations').is_dir():
        splits = sorted(
            path for path in (root / 'annotations').iterdir() if path.is_dir()
        )
        reports = [describe_map_folder(root, split.name) for split in splits]
    else:
        return [], [f'{root}: no .json file, and no images and annotations']
    return (
        [line for found, _ in reports for line in found],
        [line for _, problems in reports for line in problems],
    )
