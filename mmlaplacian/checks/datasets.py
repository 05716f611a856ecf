"""The datasets of a config, before training and testing."""

import inspect
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import DATASETS

from ..errors import InputError
from ..launch.config import scope_of
from .coco_files import check_coco, quote_names
from .images import check_images, loads_with_opencv
from .label_maps import check_labels
from .models import check_num_classes

HOW_TO_GET_DATA = (
    'tools/prepare_data.py creates the digits and the nuclei; its "check" '
    'command lists what another dataset lacks'
)


def check_datasets(config: Config, *splits: str) -> None:
    """Check the files that the datasets of a config name.

    Args:
        config: The config.
        splits: Any of ``'train'``, ``'val'`` and ``'test'``.

    Raises:
        InputError: A file or folder is missing, an annotation file is not
            COCO, its categories or the folders of a classification set are
            not the classes of the config, a head has another number of
            classes, an image is missing or cannot be decoded, or a label map
            holds a label outside the classes.
    """
    for split in splits:
        loader = config.get(f'{split}_dataloader')
        if not loader:
            continue
        key = f'{split}_dataloader.dataset'
        for dataset in unwrap_datasets(loader.dataset):
            _check_dataset(config, dataset, key)
        _check_evaluator(config.get(f'{split}_evaluator'), loader, split)


def _check_dataset(config: Config, dataset: dict, key: str) -> None:
    kind = _dataset_class(dataset.type, scope_of(config))
    is_class_folders = 'CustomDataset' in {b.__name__ for b in kind.__mro__}
    if is_class_folders and not dataset.get('data_prefix'):
        # mmpretrain's default: the class folders are in data_root itself.
        dataset = Config({**dataset, 'data_prefix': '.'})
    _check_folders(dataset, key)
    classes = _classes(dataset, kind)
    if is_class_folders:
        classes = _check_class_folders(dataset, classes, key)
    # Panoptic datasets count things and stuff; detection heads find things.
    things = list(kind.METAINFO.get('thing_classes') or classes)
    check_num_classes(config.model, things, key)
    if _is_remote(dataset):
        return
    if dataset.get('type') == 'CocoDataset':
        path = _resolve(dataset, dataset.get('ann_file', ''))
        if not path.is_file():
            raise InputError(
                f'{key}.ann_file: expected a COCO annotation file at '
                f'{path.absolute()}, found none. Set {key}.data_root or '
                f'.ann_file with --cfg-options, or get the data. '
                f'{HOW_TO_GET_DATA}'
            )
        images = _prefix_folders(dataset).get('img')
        check_coco(key, path, images, classes, dataset)
    elif 'seg_map_path' in (dataset.get('data_prefix') or {}):
        _check_segmentation(dataset, kind, classes, key)


def unwrap_datasets(dataset: dict) -> Iterator[dict]:
    """Datasets inside wrappers such as RepeatDataset or ConcatDataset."""
    inner = dataset.get('datasets') or [dataset.get('dataset')]
    if inner == [None]:
        yield dataset
    else:
        for part in inner:
            yield from unwrap_datasets(part)


def _dataset_class(name: str, scope: str) -> type:
    kind = DATASETS.get(name if '.' in name else f'{scope}.{name}')
    if kind is None:
        raise InputError(
            f'the dataset type {name!r} is not known to {scope}; name the '
            'module that registers it in custom_imports'
        )
    return kind


def _classes(dataset: dict, kind: type) -> list[str]:
    """Classes of a dataset: its metainfo, or the default of its type."""
    classes = (dataset.get('metainfo') or dataset).get('classes')
    if classes is None:
        classes = kind.METAINFO.get('classes') or ()
    if isinstance(classes, str):
        # mmengine accepts a file with one name per line, or a single name.
        path = Path(classes)
        return path.read_text().splitlines() if path.is_file() else [classes]
    return list(classes)


def _option(dataset: dict, kind: type, name: str, default):
    """An argument of a dataset, or the default of its type."""
    parameter = inspect.signature(kind).parameters.get(name)
    return dataset.get(name, parameter.default if parameter else default)


def _check_segmentation(
    dataset: dict, kind: type, classes: list[str], key: str
) -> None:
    images = dataset['data_prefix'].get('img_path')
    suffix = _option(dataset, kind, 'img_suffix', '.jpg')
    if images and not dataset.get('ann_file'):
        folder = _resolve(dataset, images)
        names = [
            path.relative_to(folder).as_posix()
            for path in sorted(folder.rglob(f'*{suffix}'))
        ]
        if not names:
            raise InputError(
                f'{key}: expected images *{suffix} in {folder.absolute()}, '
                'found none; set data_prefix.img_path and img_suffix'
            )
        check_images(key, folder, names, loads_with_opencv(dataset))
    if classes != list(kind.METAINFO.get('classes') or classes):
        # mmseg maps the labels of omitted classes to "ignored".
        return
    check_labels(
        key,
        _resolve(dataset, dataset['data_prefix']['seg_map_path']),
        _option(dataset, kind, 'seg_map_suffix', '.png'),
        classes,
        _option(dataset, kind, 'ignore_index', 255),
        _option(dataset, kind, 'reduce_zero_label', False),
    )


def _check_evaluator(evaluator, loader: dict, split: str) -> None:
    """Raise unless CocoMetric reads the annotations of the dataset."""
    metrics = evaluator if isinstance(evaluator, list) else [evaluator]
    datasets = list(unwrap_datasets(loader.dataset))
    # The metric of several datasets may read a file of its own.
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


def _resolve(dataset: dict, path: str) -> Path:
    return Path(dataset.get('data_root') or '', path)


def _is_remote(dataset: dict) -> bool:
    """True if mmengine does not read the dataset from the disk."""
    backend = (dataset.get('backend_args') or {}).get('backend', 'local')
    root = dataset.get('data_root') or ''
    return backend != 'local' or '://' in root + (
        dataset.get('ann_file') or ''
    )


def _prefix_folders(dataset: dict) -> dict[str, Path]:
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
    for name, folder in _prefix_folders(dataset).items():
        if not folder.is_dir():
            raise InputError(
                f'{key}: expected the folder {folder.absolute()} '
                f'(data_root + data_prefix.{name}), found none. Set '
                f'{key}.data_root with --cfg-options, or get the data. '
                f'{HOW_TO_GET_DATA}'
            )


def _check_class_folders(
    dataset: dict, classes: list[str], key: str
) -> list[str]:
    """Check mmpretrain's folder per class and return the classes."""
    root = _prefix_folders(dataset).get('img_path')
    if root is None or not dataset.get('with_label', True):
        return classes
    if dataset.get('ann_file'):
        path = _resolve(dataset, dataset['ann_file'])
        if not path.is_file():
            raise InputError(
                f'{key}.ann_file: expected a file with an image and its label '
                f'in each line at {path.absolute()}, found none'
            )
        return classes
    names = sorted(path.name for path in root.iterdir() if path.is_dir())
    if not names or len(names) != len(classes or names):
        raise InputError(
            f'{key}: expected a folder with the images of each class in '
            f'{root.absolute()}, {len(classes) or "one or more"} in all, '
            f'found {len(names)} ({quote_names(names)}). Sort the images into '
            'them, or give a file with an image and its label in each line '
            f'as {key}.ann_file'
        )
    if sorted(classes) == names and classes != names:
        raise InputError(
            f'{key}: the classes must be in the order of their folders, '
            f'{quote_names(names)}, got {quote_names(classes)}; labels would '
            'be exchanged'
        )
    return classes or names
