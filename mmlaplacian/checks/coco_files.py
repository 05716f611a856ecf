"""COCO annotation files."""

import json
import mmap
import re
from collections import Counter
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

from ..errors import InputError
from .images import check_images, find_images, loads_with_opencv

#: Largest file in bytes that is parsed completely. Parsing COCO's own files
#: takes seconds, so only the categories of larger files are read.
MAX_PARSED_BYTES = 50_000_000
COCO_KEYS = ('images', 'categories', 'annotations')


def quote_names(names: list, most: int = 10) -> str:
    """The first ``most`` names in quotes, for messages."""
    shown = ', '.join(repr(name) for name in names[:most])
    return f'{shown}, ...' if len(names) > most else shown or 'none'


def read_categories(path: Path, annotated: bool = True) -> list[dict]:
    """Read the categories of a COCO file.

    Args:
        path: Annotation file.
        annotated: Require annotations, which test sets do not have.
            Default: True.

    Returns:
        Its categories, each with at least ``id`` and ``name``.

    Raises:
        InputError: The file is not a COCO annotation file.
    """
    keys = COCO_KEYS if annotated else COCO_KEYS[:-1]
    if path.stat().st_size > MAX_PARSED_BYTES:
        categories = _find_categories(path, keys)
        if categories is not None:
            return categories
    try:
        content = json.loads(path.read_bytes())
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f'{path}: expected COCO annotations, which are JSON, but it '
            f'does not parse: {error}'
        ) from error
    if not isinstance(content, dict):
        came = f'a JSON {type(content).__name__}'
    elif missing := [key for key in keys if key not in content]:
        came = f'no {" and no ".join(missing)} among {quote_names([*content])}'
    elif not _are_categories(content['categories']):
        came = 'categories without id and name'
    else:
        return content['categories']
    raise InputError(
        f'{path}: expected COCO annotations, a JSON object with the lists '
        f'{", ".join(keys)}, got {came}; convert the file first'
    )


def _find_categories(path: Path, keys: tuple[str, ...]) -> list[dict] | None:
    """Find the categories of a complete-looking file without parsing it."""
    with (
        open(path, 'rb') as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        found = list(re.finditer(rb'"categories"\s*:\s*', text))
        keys = [f'"{key}"'.encode() for key in keys]
        whole = text[:64].lstrip()[:1] + text[-64:].rstrip()[-1:] == b'{}'
        if not (whole and found and all(text.find(key) >= 0 for key in keys)):
            return None
        tail = text[found[-1].end() : found[-1].end() + 2**20]
    try:
        categories, _ = JSONDecoder().raw_decode(tail.decode(errors='replace'))
    except JSONDecodeError:
        return None
    return categories if _are_categories(categories) else None


def _are_categories(value) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and {'id', 'name'} <= set(item)
        for item in value
    )


def check_coco(
    key: str,
    path: Path,
    images: Path | None,
    classes: list[str],
    dataset: dict,
) -> None:
    """Raise unless a COCO file fits its dataset and the images exist.

    The images and objects of files above :data:`MAX_PARSED_BYTES` are not
    checked.

    Args:
        key: Config key of the dataset, for messages.
        path: Annotation file.
        images: Folder of the images; None if it is not on this machine.
        classes: Class names of the dataset.
        dataset: Config of the dataset.

    Raises:
        InputError: The file is missing or not COCO, its categories are not
            the classes, an image is missing, no object is left to train on,
            or masks are missing.
    """
    annotated = not dataset.get('test_mode')
    categories = read_categories(path, annotated)
    _check_classes(key, path, categories, classes)
    if path.stat().st_size > MAX_PARSED_BYTES:
        return
    content = json.loads(path.read_bytes())
    if images is not None:
        names = [image['file_name'] for image in content['images']]
        check_images(key, images, names, loads_with_opencv(dataset))
    wanted = {c['id'] for c in categories if c['name'] in classes}
    # The conditions are those of mmdet's own filter.
    kept = [
        annotation
        for annotation in content.get('annotations', ())
        if annotation['category_id'] in wanted
        and not annotation.get('ignore')
        and annotation.get('area', 1) > 0
        and min(annotation['bbox'][2:]) >= 1
    ]
    drops_empty = (dataset.get('filter_cfg') or {}).get('filter_empty_gt')
    if drops_empty and not kept and annotated:
        raise InputError(
            f'{key}: {path} holds no object, and filter_cfg.filter_empty_gt '
            'drops images without objects: nothing is left to train on'
        )
    steps = dataset.get('pipeline') or ()
    if any(step.get('with_mask') for step in steps):
        bare = [a.get('id') for a in kept if not a.get('segmentation')]
        if bare:
            raise InputError(
                f'{key}: the pipeline loads masks, but {len(bare)} of '
                f'{len(kept)} objects of {path} have no segmentation, '
                f'such as annotation {bare[0]}; use a config for boxes, such '
                'as RetinaNet, or add masks'
            )


def _check_classes(
    key: str, path: Path, categories: list[dict], classes: list[str]
) -> None:
    names = [category['name'] for category in categories]
    missing = [name for name in classes if name not in names]
    if missing:
        raise InputError(
            f'{key}: {len(missing)} of {len(classes)} classes are not '
            f'categories of {path}: {quote_names(missing)}; the file has '
            f'{quote_names(names)}. Set metainfo=dict(classes=(...)) of the '
            'train, val and test datasets to the names in the file, and '
            'num_classes of the heads to their number'
        )
    # mmdet numbers labels in the order of the file.
    in_file = [name for name in names if name in classes]
    if in_file != classes:
        raise InputError(
            f'{key}: the classes must be in the order of {path}, which has '
            f'{quote_names(in_file)}, got {quote_names(classes)}; labels '
            'would be exchanged'
        )


def describe_coco(root: Path, path: Path) -> tuple[list[str], list[str]]:
    """Describe a COCO file of a dataset folder.

    Args:
        root: Folder of the dataset, in which the images are searched.
        path: Annotation file.

    Returns:
        Findings and problems, one line each.
    """
    try:
        categories = read_categories(path)
    except InputError as error:
        return [], [str(error)]
    coco = json.loads(path.read_text())
    annotations = coco['annotations']
    objects = Counter(a['category_id'] for a in annotations)
    names = ', '.join(repr(category['name']) for category in categories)
    found = [
        f'{path}: {len(coco["images"])} images, {len(annotations)} objects',
        f'  classes=({names},)',
    ]
    found += [
        f'  no object of the class {category["name"]!r}'
        for category in categories
        if not objects[category['id']]
    ]
    problems = []
    unknown = set(objects) - {category['id'] for category in categories}
    if unknown:
        problems.append(
            f'{path}: objects of category_id {sorted(unknown)}, which no '
            'category has'
        )
    masks = sum('segmentation' in a for a in annotations)
    if masks < len(annotations):
        found.append(
            f'  {masks} objects have masks: boxes only, such as RetinaNet'
        )
    images = [image['file_name'] for image in coco['images']]
    folder, present = find_images(root, images)
    if present:
        found.append(f'  images in {folder}')
    if missing := [name for name in images if name not in present]:
        problems.append(
            f'{path}: {len(missing)} of {len(images)} images are not in '
            f'{folder}, such as {missing[0]}'
        )
    return found, problems
