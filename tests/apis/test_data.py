"""Datasets that cannot be trained on, each with its message."""

import json
from pathlib import Path

import pytest
from mmengine.config import Config

from mmlaplacian.apis import check_datasets, explain_unreadable_image
from mmlaplacian.apis.data import read_categories
from mmlaplacian.errors import InputError

CONFIG = (
    Path(__file__).resolve().parents[2]
    / 'configs/digits/mask-rcnn_laplacianformer-nano_fpn_digits.py'
)


@pytest.fixture
def config(digit_scenes):
    config = Config.fromfile(CONFIG)
    for split in ('train', 'val', 'test'):
        config[f'{split}_dataloader'].dataset.data_root = str(digit_scenes)
    config.val_evaluator.ann_file = str(digit_scenes / 'annotations/val.json')
    return config


def annotate(config, tmp_path, text):
    path = tmp_path / 'annotations.json'
    path.write_text(text)
    config.train_dataloader.dataset.ann_file = str(path)
    return path


def test_good_data(config):
    check_datasets(config, 'train', 'val')


def test_missing_dataset():
    config = Config.fromfile(CONFIG)
    config.train_dataloader.dataset.data_root = '/nowhere'
    with pytest.raises(InputError, match='/nowhere/train') as caught:
        check_datasets(config, 'train')
    for part in ('train_dataloader.dataset', '--cfg-options', 'prepare_data'):
        assert part in str(caught.value)


def test_missing_annotation_file(config):
    config.train_dataloader.dataset.ann_file = 'annotations/other.json'
    with pytest.raises(InputError, match=r'ann_file.*other\.json'):
        check_datasets(config, 'train')


def test_missing_evaluator_file(config):
    config.val_evaluator.ann_file = 'gone.json'
    with pytest.raises(InputError, match=r'val_evaluator.ann_file.*gone'):
        check_datasets(config, 'val')


@pytest.mark.parametrize(
    'text, message',
    [
        ('not json', 'does not parse'),
        ('', 'does not parse'),
        ('[1, 2]', 'got a JSON list'),
        ('{"images": [], "labels": []}', 'no annotations and no categories'),
        (
            '{"images": [], "annotations": [], "categories": ["cat"]}',
            'categories without id and name',
        ),
    ],
)
def test_annotations_that_are_not_coco(config, tmp_path, text, message):
    path = annotate(config, tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        check_datasets(config, 'train')
    assert str(path) in str(caught.value)


def coco_with(names):
    return json.dumps(
        dict(
            images=[],
            annotations=[],
            categories=[dict(id=i, name=n) for i, n in enumerate(names)],
        )
    )


def test_no_matching_category(config, tmp_path):
    annotate(config, tmp_path, coco_with(['cat', 'dog']))
    with pytest.raises(InputError, match='10 of 10 classes') as caught:
        check_datasets(config, 'train')
    for part in ("'cat', 'dog'", "'0', '1'", 'metainfo', 'num_classes'):
        assert part in str(caught.value)


def test_forgotten_metainfo(config, tmp_path, openmmlab):
    annotate(config, tmp_path, coco_with(['cat', 'wombat']))
    del config.train_dataloader.dataset['metainfo']
    with pytest.raises(InputError, match="79 of 80.*'person'"):
        check_datasets(config, 'train')


def test_classes_in_another_order(config, tmp_path):
    annotate(config, tmp_path, coco_with(['dog', 'cat', 'cow']))
    config.train_dataloader.dataset.metainfo = dict(classes=('cat', 'dog'))
    with pytest.raises(InputError, match='exchanged') as caught:
        check_datasets(config, 'train')
    assert "has 'dog', 'cat', got 'cat', 'dog'" in str(caught.value)


def test_wrapped_datasets_are_checked(config):
    inner = config.train_dataloader.dataset
    inner.data_root = '/nowhere'
    config.train_dataloader.dataset = dict(
        type='RepeatDataset',
        times=2,
        dataset=dict(type='ConcatDataset', datasets=[inner]),
    )
    with pytest.raises(InputError, match='/nowhere'):
        check_datasets(config, 'train')


@pytest.mark.parametrize('order', [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_categories_are_found_wherever_they_stand(tmp_path, order):
    parts = [
        ('info', dict(description='has "categories": none')),
        ('images', [dict(id=i, file_name='x' * 100) for i in range(2000)]),
        ('annotations', []),
        ('categories', [dict(id=7, name='a'), dict(id=9, name='b')]),
    ]
    path = tmp_path / 'coco.json'
    path.write_text(json.dumps(dict(parts[i] for i in order)))
    assert [c['name'] for c in read_categories(path)] == ['a', 'b']


def test_unreadable_image_is_named():
    errors = [
        AssertionError(
            'Caught AssertionError in DataLoader worker process 1.\n'
            'Traceback ...\nAssertionError: failed to load image: a/b.jpg\n'
        ),
        FileNotFoundError(2, 'No such file or directory', 'a/b.jpg'),
    ]
    for error in errors:
        message = str(explain_unreadable_image(error))
        assert 'a/b.jpg' in message and '--resume' in message
    assert explain_unreadable_image(ValueError('other')) is None
