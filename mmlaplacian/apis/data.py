"""Checks of datasets before training, and of images while it runs."""

import json
import mmap
import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

from mmengine.config import Config

from ..errors import InputError

COCO_KEYS = ('images', 'annotations', 'categories')
DIGITS = 'For the digits: python tools/prepare_data.py digits'


def check_datasets(config: Config, *splits: str) -> None:
    """Look at the files that the datasets of a config name.

    Args:
        config: The config.
        splits: Of ``'train'``, ``'val'`` and ``'test'``.

    Raises:
        InputError: A file or folder is missing, an annotation file is not
            COCO, or its categories are not the classes of the config.
    """
    for split in splits:
        loader = config.get(f'{split}_dataloader')
        if not loader:
            continue
        key = f'{split}_dataloader.dataset'
        for dataset in _leaves(loader.dataset):
            _check_folders(dataset, key)
            if dataset.get('type') == 'CocoDataset':
                _check_coco(dataset, key)
        _check_evaluator(config.get(f'{split}_evaluator'), split)


def _check_evaluator(evaluator, split: str) -> None:
    metrics = evaluator if isinstance(evaluator, list) else [evaluator]
    for metric in metrics:
        path = (metric or {}).get('ann_file')
        if path and '://' not in path and not Path(path).is_file():
            raise InputError(
                f'{split}_evaluator.ann_file: expected an annotation file at '
                f'{Path(path).absolute()}, found none. It must be the one of '
                f'{split}_dataloader.dataset; set it with --cfg-options'
            )


def _leaves(dataset: dict) -> Iterator[dict]:
    """Datasets inside wrappers such as RepeatDataset or ConcatDataset."""
    inner = dataset.get('datasets') or [dataset.get('dataset')]
    if inner == [None]:
        yield dataset
    else:
        for part in inner:
            yield from _leaves(part)


def _resolve(dataset: dict, path: str) -> Path:
    return Path(dataset.get('data_root') or '', path)


def _check_folders(dataset: dict, key: str) -> None:
    prefixes = dataset.get('data_prefix') or {}
    for name, prefix in prefixes.items():
        if not isinstance(prefix, str) or '://' in str(
            _resolve(dataset, prefix)
        ):
            continue
        folder = _resolve(dataset, prefix)
        if not folder.is_dir():
            raise InputError(
                f'{key}: expected the folder {folder.absolute()} '
                f'(data_root + data_prefix.{name}), found none. Set '
                f'{key}.data_root with --cfg-options, or get the data. '
                f'{DIGITS}'
            )


def _check_coco(dataset: dict, key: str) -> None:
    path = _resolve(dataset, dataset.get('ann_file', ''))
    if not path.is_file():
        raise InputError(
            f'{key}.ann_file: expected a COCO annotation file at '
            f'{path.absolute()}, found none. Set {key}.data_root or '
            f'.ann_file with --cfg-options, or get the data. {DIGITS}'
        )
    names = [category['name'] for category in read_categories(path)]
    classes = (dataset.get('metainfo') or {}).get('classes')
    if classes is None:
        from mmdet.datasets import CocoDataset

        classes = CocoDataset.METAINFO['classes']
    classes = [classes] if isinstance(classes, str) else list(classes)
    missing = [name for name in classes if name not in names]
    hint = (
        f'the file has {_shorten(names)}. Set metainfo=dict(classes=(...)) of '
        'the train, val and test datasets to the names in the file, and '
        'num_classes of the heads to their number'
    )
    if missing:
        raise InputError(
            f'{key}: {len(missing)} of {len(classes)} classes are no category '
            f'of {path}: {_shorten(missing)}; {hint}'
        )
    # mmdet numbers the labels in the order of the file, not of the classes.
    in_file = [name for name in names if name in classes]
    if in_file != classes:
        raise InputError(
            f'{key}: the classes must be in the order of {path}, which has '
            f'{_shorten(in_file)}, got {_shorten(classes)}; labels would be '
            'exchanged'
        )


def _shorten(names: list, most: int = 10) -> str:
    shown = ', '.join(repr(name) for name in names[:most])
    return f'{shown}, ...' if len(names) > most else shown or 'none'


def read_categories(path: Path) -> list[dict]:
    """Categories of a COCO file; a large one is not parsed whole.

    Args:
        path: Annotation file.

    Returns:
        Its categories, each with at least ``id`` and ``name``.

    Raises:
        InputError: The file is not a COCO annotation file.
    """
    with open(path, 'rb') as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                found = list(re.finditer(rb'"categories"\s*:\s*', text))
                keys = [f'"{key}"'.encode() for key in COCO_KEYS]
                if found and all(text.find(key) >= 0 for key in keys):
                    tail = text[found[-1].end() : found[-1].end() + 2**20]
                    categories, _ = JSONDecoder().raw_decode(
                        tail.decode(errors='replace')
                    )
                    if _are_categories(categories):
                        return categories
        except (JSONDecodeError, ValueError):
            pass
        file.seek(0)
        try:
            content = json.load(file)
        except (JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(
                f'{path}: expected COCO annotations, which are JSON, but it '
                f'does not parse: {error}'
            ) from error
    if not isinstance(content, dict):
        came = f'a JSON {type(content).__name__}'
    elif missing := [key for key in COCO_KEYS if key not in content]:
        came = f'no {" and no ".join(missing)} among {_shorten([*content])}'
    elif not _are_categories(content['categories']):
        came = 'categories without id and name'
    else:
        return content['categories']
    raise InputError(
        f'{path}: expected COCO annotations, a JSON object with the lists '
        f'{", ".join(COCO_KEYS)}, got {came}; convert the file first'
    )


def _are_categories(value) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and {'id', 'name'} <= set(item)
        for item in value
    )


def explain_unreadable_image(error: Exception) -> InputError | None:
    """Turn a failure to read an image into one message; None if it is not.

    Args:
        error: What a training or test loop raised, also from a worker.

    Returns:
        The message to raise instead.
    """
    text = str(error)
    found = re.search(r'failed to load image: (.+)', text) or re.search(
        r"No such file or directory: '([^']+\.\w+)'", text
    )
    if not found:
        return None
    return InputError(
        f'the image {found[1].strip()} is missing or cannot be decoded; '
        'restore it, or take it out of the annotation file. Finished epochs '
        'are saved: go on with --resume'
    )
