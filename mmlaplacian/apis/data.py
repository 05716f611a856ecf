"""Checks of datasets before training."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS

from ..datasets.annotations import (
    PARSED_WHOLE,
    read_categories,
    shorten,
)
from ..errors import InputError

#: Config keys of parts whose num_classes is that of the data.
HEADS = ('bbox_head', 'mask_head', 'decode_head', 'head', 'data_preprocessor')
#: Label maps that are read before training.
LOOKED_AT = 200
HELP = (
    'tools/prepare_data.py writes the digits and the nuclei, and with "check" '
    'says what another dataset lacks'
)


def check_datasets(config: Config, *splits: str) -> None:
    """Look at the files that the datasets of a config name.

    Args:
        config: The config.
        splits: Of ``'train'``, ``'val'`` and ``'test'``.

    Raises:
        InputError: A file or folder is missing, an annotation file is not
            COCO, its categories or the folders of a classification set are
            not the classes of the config, a head has another number of
            classes, or a label map holds a label outside of them.
    """
    scope = config.get('default_scope') or 'mmdet'
    for split in splits:
        loader = config.get(f'{split}_dataloader')
        if not loader:
            continue
        key = f'{split}_dataloader.dataset'
        for dataset in leaves(loader.dataset):
            kind = _dataset_class(dataset.type, scope)
            sorts = 'CustomDataset' in {base.__name__ for base in kind.__mro__}
            if sorts and not dataset.get('data_prefix'):
                # mmpretrain's default: the folders lie in data_root itself.
                dataset = Config({**dataset, 'data_prefix': '.'})
            _check_folders(dataset, key)
            classes = _classes(dataset, kind)
            if sorts:
                classes = _check_class_folders(dataset, classes, key)
            # Panoptic detectors find things; stuff has heads of its own.
            things = list(kind.METAINFO.get('thing_classes') or classes)
            _check_heads(config.model, things, key)
            if dataset.get('type') == 'CocoDataset':
                _check_coco(dataset, classes, key)
            elif 'seg_map_path' in (dataset.get('data_prefix') or {}):
                _check_label_maps(dataset, kind, classes, key)
        _check_evaluator(config.get(f'{split}_evaluator'), loader, split)


def _dataset_class(name: str, scope: str) -> type:
    kind = DATASETS.get(name if '.' in name else f'{scope}.{name}')
    if kind is None:
        raise InputError(
            f'the dataset type {name!r} is not known to {scope}; name the '
            'module that registers it in custom_imports'
        )
    return kind


def _classes(dataset: dict, kind: type) -> list[str]:
    """Classes of a dataset: its metainfo, or its type's."""
    classes = (dataset.get('metainfo') or dataset).get('classes')
    if classes is None:
        classes = kind.METAINFO.get('classes') or ()
    if isinstance(classes, str):
        # mmengine takes a file with a name on each line, or one name.
        path = Path(classes)
        return path.read_text().splitlines() if path.is_file() else [classes]
    return list(classes)


def _check_heads(model: dict, classes: list[str], key: str) -> None:
    """Every head must have as many classes as the data."""
    for name, node in model.items():
        for part in node if isinstance(node, list) else [node]:
            if not isinstance(part, dict):
                continue
            number = part.get('num_classes')
            if part.get('class_agnostic') or name not in HEADS:
                number = None
            if classes and number not in (None, len(classes)):
                raise InputError(
                    f'{name}.num_classes is {number}, but {key} has '
                    f'{len(classes)} classes ({shorten(classes)}); the two '
                    'must agree'
                )
            _check_heads(part, classes, key)


def _option(dataset: dict, kind: type, name: str, default):
    """An argument of a dataset, or its type's default for it."""
    parameter = inspect.signature(kind).parameters.get(name)
    return dataset.get(name, parameter.default if parameter else default)


def _check_label_maps(
    dataset: dict, kind: type, classes: list[str], key: str
) -> None:
    """Look for labels outside the classes in some maps, evenly spread."""
    images = dataset['data_prefix'].get('img_path')
    ending = _option(dataset, kind, 'img_suffix', '.jpg')
    if images and not dataset.get('ann_file'):
        place = _resolve(dataset, images)
        if next(place.rglob(f'*{ending}'), None) is None:
            raise InputError(
                f'{key}: expected images *{ending} in {place.absolute()}, '
                'found none; set data_prefix.img_path and img_suffix'
            )
    known = list(kind.METAINFO.get('classes') or classes)
    if classes != known:
        # mmseg maps the labels of the classes left out to "ignored".
        return
    ignored = _option(dataset, kind, 'ignore_index', 255)
    folder = _resolve(dataset, dataset['data_prefix']['seg_map_path'])
    suffix = _option(dataset, kind, 'seg_map_suffix', '.png')
    reduced = _option(dataset, kind, 'reduce_zero_label', False)
    maps = sorted(folder.rglob(f'*{suffix}'))
    if not maps:
        raise InputError(
            f'{key}: expected label maps *{suffix} in {folder.absolute()}, '
            'found none; set data_prefix.seg_map_path and seg_map_suffix'
        )
    for path in maps[:: max(len(maps) // LOOKED_AT, 1)]:
        try:
            # As mmseg reads them: a palette keeps its numbers.
            label_map = mmcv.imfrombytes(
                path.read_bytes(), flag='unchanged', backend='pillow'
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f'{key}: the label map {path} cannot be decoded ({error}); '
                'restore it, or take it and its image out of the dataset'
            ) from error
        labels = np.unique(label_map)
        # 0 becomes 255, which is ignored, and the others move down.
        largest = len(classes) if reduced else len(classes) - 1
        wrong = [int(n) for n in labels if n > largest and n != ignored]
        if wrong:
            raise InputError(
                f'{key}: {path} holds the labels {wrong[:10]}, expected 0 to '
                f'{largest} for {len(classes)} classes '
                f'({shorten(classes)}), or {ignored} to be ignored'
            )


def _check_evaluator(evaluator, loader: dict, split: str) -> None:
    """CocoMetric must compare with the annotations of the dataset."""
    metrics = evaluator if isinstance(evaluator, list) else [evaluator]
    datasets = list(leaves(loader.dataset))
    # Several datasets may share a file that holds all of them.
    if len(datasets) != 1 or _is_remote(datasets[0]):
        return
    expected = _resolve(datasets[0], datasets[0].get('ann_file', ''))
    for metric in metrics:
        if not str((metric or {}).get('type')).endswith('CocoMetric'):
            continue
        path = metric.get('ann_file')
        if path and Path(path).resolve() != expected.resolve():
            raise InputError(
                f'{split}_evaluator.ann_file must be the file of '
                f'{split}_dataloader.dataset: expected {expected.resolve()}, '
                f'got {Path(path).resolve()}; set both with --cfg-options'
            )


def leaves(dataset: dict) -> Iterator[dict]:
    """Datasets inside wrappers such as RepeatDataset or ConcatDataset."""
    inner = dataset.get('datasets') or [dataset.get('dataset')]
    if inner == [None]:
        yield dataset
    else:
        for part in inner:
            yield from leaves(part)


def _resolve(dataset: dict, path: str) -> Path:
    return Path(dataset.get('data_root') or '', path)


def _is_remote(dataset: dict) -> bool:
    """Whether mmengine reads a dataset from elsewhere than the disk."""
    backend = (dataset.get('backend_args') or {}).get('backend', 'local')
    root = dataset.get('data_root') or ''
    return backend != 'local' or '://' in root + (
        dataset.get('ann_file') or ''
    )


def prefix_folders(dataset: dict) -> dict[str, Path]:
    """Folders of a dataset on this machine, by their name in data_prefix."""
    prefixes = dataset.get('data_prefix') or {}
    if isinstance(prefixes, str):
        prefixes = dict(img_path=prefixes)
    if _is_remote(dataset):
        return {}
    return {
        name: _resolve(dataset, prefix)
        for name, prefix in prefixes.items()
        if isinstance(prefix, str) and '://' not in prefix
    }


def _check_folders(dataset: dict, key: str) -> None:
    for name, folder in prefix_folders(dataset).items():
        if not folder.is_dir():
            raise InputError(
                f'{key}: expected the folder {folder.absolute()} '
                f'(data_root + data_prefix.{name}), found none. Set '
                f'{key}.data_root with --cfg-options, or get the data. '
                f'{HELP}'
            )


def _check_class_folders(
    dataset: dict, classes: list[str], key: str
) -> list[str]:
    """Check mmpretrain's folder for each class; the classes."""
    place = prefix_folders(dataset).get('img_path')
    if place is None or not dataset.get('with_label', True):
        return classes
    if dataset.get('ann_file'):
        path = _resolve(dataset, dataset['ann_file'])
        if not path.is_file():
            raise InputError(
                f'{key}.ann_file: expected a file with an image and its label '
                f'in each line at {path.absolute()}, found none'
            )
        return classes
    names = sorted(p.name for p in place.iterdir() if p.is_dir())
    if not names or len(names) != len(classes or names):
        raise InputError(
            f'{key}: expected a folder with the images of each class in '
            f'{place.absolute()}, {len(classes) or "one or more"} in all, '
            f'found {len(names)} ({shorten(names)}). Sort the images into '
            'them, or give a file with an image and its label in each line '
            f'as {key}.ann_file'
        )
    if sorted(classes) == names and classes != names:
        raise InputError(
            f'{key}: the classes must be in the order of their folders, '
            f'{shorten(names)}, got {shorten(classes)}; labels would be '
            'exchanged'
        )
    return classes or names


def _check_coco(dataset: dict, classes: list[str], key: str) -> None:
    if _is_remote(dataset):
        return
    path = _resolve(dataset, dataset.get('ann_file', ''))
    if not path.is_file():
        raise InputError(
            f'{key}.ann_file: expected a COCO annotation file at '
            f'{path.absolute()}, found none. Set {key}.data_root or '
            f'.ann_file with --cfg-options, or get the data. {HELP}'
        )
    # Test sets are published without annotations.
    annotated = not dataset.get('test_mode')
    categories = read_categories(path, annotated)
    names = [category['name'] for category in categories]
    missing = [name for name in classes if name not in names]
    hint = (
        f'the file has {shorten(names)}. Set metainfo=dict(classes=(...)) of '
        'the train, val and test datasets to the names in the file, and '
        'num_classes of the heads to their number'
    )
    if missing:
        raise InputError(
            f'{key}: {len(missing)} of {len(classes)} classes are no category '
            f'of {path}: {shorten(missing)}; {hint}'
        )
    # mmdet numbers the labels in the order of the file, not of the classes.
    in_file = [name for name in names if name in classes]
    if in_file != classes:
        raise InputError(
            f'{key}: the classes must be in the order of {path}, which has '
            f'{shorten(in_file)}, got {shorten(classes)}; labels would be '
            'exchanged'
        )
    wanted = {c['id'] for c in categories if c['name'] in classes}
    _check_objects(dataset, path, wanted, key)


def _check_objects(dataset: dict, path: Path, wanted: set, key: str) -> None:
    """Objects, and their masks where the pipeline loads them."""
    if path.stat().st_size > PARSED_WHOLE:
        return
    # Those that mmdet keeps.
    annotations = [
        found
        for found in json.loads(path.read_bytes()).get('annotations', ())
        if found['category_id'] in wanted
        and not found.get('ignore')
        and found.get('area', 1) > 0
        and min(found['bbox'][2:]) >= 1
    ]
    drops_empty = (dataset.get('filter_cfg') or {}).get('filter_empty_gt')
    if drops_empty and not annotations and not dataset.get('test_mode'):
        raise InputError(
            f'{key}: {path} holds no object, and filter_cfg.filter_empty_gt '
            'leaves images without objects out: nothing is left to train on'
        )
    steps = dataset.get('pipeline') or ()
    if any(step.get('with_mask') for step in steps):
        bare = [a.get('id') for a in annotations if not a.get('segmentation')]
        if bare:
            raise InputError(
                f'{key}: the pipeline loads masks, but {len(bare)} of '
                f'{len(annotations)} objects of {path} have no segmentation, '
                f'such as annotation {bare[0]}; use a config for boxes, such '
                'as RetinaNet, or add masks'
            )
