"""Datasets that cannot be trained on, each with its message."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmlaplacian.checks import coco_files
from mmlaplacian.checks.datasets import check_datasets
from mmlaplacian.checks.models import check_batch_norm
from mmlaplacian.datasets.digits import write_digits
from mmlaplacian.errors import InputError

CONFIG = (
    Path(__file__).resolve().parents[2]
    / 'configs/digits/mask-rcnn_laplacianformer-nano_fpn_digits.py'
)


@pytest.fixture
def config(digit_scenes, openmmlab):
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


def test_missing_dataset(openmmlab):
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


@pytest.mark.parametrize('name', ['gone.json', 'annotations/train.json'])
def test_evaluator_with_another_file(config, digit_scenes, name):
    config.val_evaluator.ann_file = str(digit_scenes / name)
    with pytest.raises(InputError, match='val_evaluator.ann_file') as caught:
        check_datasets(config, 'val')
    assert 'annotations/val.json, got ' in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    'text, message',
    [
        ('not json', 'does not parse'),
        ('', 'does not parse'),
        ('[1, 2]', 'got a JSON list'),
        ('[{"images": [], "annotations": [], "categories": []}]', 'list'),
        ('{"categories": [], "annotations": [], "images": [', 'not parse'),
        ('{"images": [], "labels": []}', 'no categories and no annotations'),
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


def set_num_classes(config, number):
    config.model.roi_head.bbox_head.num_classes = number
    config.model.roi_head.mask_head.num_classes = number


def coco_with(names, annotations=()):
    return json.dumps(
        dict(
            images=[],
            annotations=list(annotations),
            categories=[dict(id=i, name=n) for i, n in enumerate(names)],
        )
    )


def test_no_matching_category(config, tmp_path):
    annotate(config, tmp_path, coco_with(['cat', 'dog']))
    with pytest.raises(InputError, match='10 of 10 classes are not') as caught:
        check_datasets(config, 'train')
    for part in ("'cat', 'dog'", "'0', '1'", 'metainfo', 'num_classes'):
        assert part in str(caught.value)


def test_forgotten_metainfo(config, tmp_path):
    annotate(config, tmp_path, coco_with(['cat', 'wombat']))
    del config.train_dataloader.dataset['metainfo']
    set_num_classes(config, 80)
    with pytest.raises(InputError, match="79 of 80.*'person'"):
        check_datasets(config, 'train')


def test_classes_in_another_order(config, tmp_path):
    annotate(config, tmp_path, coco_with(['dog', 'cat', 'cow']))
    config.train_dataloader.dataset.metainfo = dict(classes=('cat', 'dog'))
    set_num_classes(config, 2)
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


def test_heads_with_another_number_of_classes(config):
    config.model.roi_head.mask_head.num_classes = 80
    with pytest.raises(InputError, match='mask_head.num_classes is 80.*10 cl'):
        check_datasets(config, 'train')


def test_classes_from_a_file(config, tmp_path):
    names = tmp_path / 'names.txt'
    names.write_text('\n'.join('0123456789') + '\n')
    config.train_dataloader.dataset.metainfo = dict(classes=str(names))
    check_datasets(config, 'train')


def test_nothing_to_train_on(config, tmp_path):
    annotate(config, tmp_path, coco_with('0123456789'))
    check_datasets(config, 'train')
    config.train_dataloader.dataset.filter_cfg = dict(filter_empty_gt=True)
    with pytest.raises(InputError, match='nothing is left to train on'):
        check_datasets(config, 'train')


def test_required_masks_are_missing(config, tmp_path):
    box = dict(id=7, image_id=1, category_id=1, bbox=[1, 2, 3, 4], area=12)
    annotate(config, tmp_path, coco_with('0123456789', [box]))
    with pytest.raises(InputError, match='such as annotation 7') as caught:
        check_datasets(config, 'train')
    assert 'RetinaNet' in str(caught.value)


def test_unknown_dataset_type(config):
    config.train_dataloader.dataset.type = 'PetsDataset'
    with pytest.raises(InputError, match=r"'PetsDataset'.*custom_imports"):
        check_datasets(config, 'train')


@pytest.mark.parametrize('most', [0, coco_files.MAX_PARSED_BYTES])
@pytest.mark.parametrize('order', [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_categories_are_found_anywhere_in_the_file(
    tmp_path, monkeypatch, order, most
):
    monkeypatch.setattr(coco_files, 'MAX_PARSED_BYTES', most)
    parts = [
        ('info', dict(description='has "categories": none')),
        ('images', [dict(id=i, file_name='x' * 100) for i in range(2000)]),
        ('annotations', []),
        ('categories', [dict(id=7, name='a'), dict(id=9, name='b')]),
    ]
    path = tmp_path / 'coco.json'
    path.write_text(json.dumps(dict(parts[i] for i in order)))
    names = [c['name'] for c in coco_files.read_categories(path)]
    assert names == ['a', 'b']
    path.write_text(path.read_text()[:-10])
    with pytest.raises(InputError, match='does not parse'):
        coco_files.read_categories(path)


@pytest.fixture
def segmentation(tmp_path, openmmlab):
    """Semantic FPN on three scenes."""
    config = Config.fromfile(
        CONFIG.parent / 'semantic-fpn_laplacianformer-nano_digits.py'
    )
    write_digits(tmp_path, dict(train=3))
    config.train_dataloader.dataset.data_root = str(tmp_path)
    return config


def test_label_outside_the_classes(segmentation, tmp_path):
    check_datasets(segmentation, 'train')
    path = tmp_path / 'semantic/train/000002.png'
    labels = cv2.imread(str(path), -1)
    labels[0, :3] = 255, 10, 11
    cv2.imwrite(str(path), labels)
    with pytest.raises(InputError, match=r'000002\.png.* \[11\]') as caught:
        check_datasets(segmentation, 'train')
    assert 'expected 0 to 10 for 11 classes' in str(caught.value)


def test_images_with_another_ending(segmentation):
    segmentation.train_dataloader.dataset.img_suffix = '.jpg'
    with pytest.raises(InputError, match=r'expected images \*\.jpg in '):
        check_datasets(segmentation, 'train')


def test_label_maps_with_a_palette(segmentation, tmp_path):
    path = tmp_path / 'semantic/train/000001.png'
    picture = Image.fromarray(cv2.imread(str(path), -1), mode='P')
    picture.putpalette([*range(255, -1, -1)] * 3)
    picture.save(path)
    check_datasets(segmentation, 'train')


def test_label_map_that_cannot_be_decoded(segmentation, tmp_path):
    (tmp_path / 'semantic/train/000001.png').write_bytes(b'')
    with pytest.raises(InputError, match=r'000001\.png cannot be decoded'):
        check_datasets(segmentation, 'train')


def test_some_classes_of_a_dataset(tmp_path, openmmlab):
    (tmp_path / 'i').mkdir()
    (tmp_path / 'a').mkdir()
    cv2.imwrite(str(tmp_path / 'i/x.jpg'), np.zeros((4, 4, 3), np.uint8))
    cv2.imwrite(str(tmp_path / 'a/x.png'), np.full((4, 4), 149, np.uint8))
    dataset = dict(
        type='ADE20KDataset',
        data_root=str(tmp_path),
        data_prefix=dict(img_path='i', seg_map_path='a'),
    )
    config = Config(
        dict(
            default_scope='mmseg',
            model=dict(decode_head=dict(num_classes=150)),
            train_dataloader=dict(dataset=dataset),
        )
    )
    check_datasets(config, 'train')
    config.train_dataloader.dataset.metainfo = dict(classes=('wall', 'floor'))
    config.model.decode_head.num_classes = 2
    check_datasets(config, 'train')


def test_test_set_without_annotations(config, tmp_path):
    text = json.loads(coco_with('0123456789'))
    del text['annotations']
    annotate(config, tmp_path, json.dumps(text))
    with pytest.raises(InputError, match='no annotations'):
        check_datasets(config, 'train')
    config.train_dataloader.dataset.test_mode = True
    check_datasets(config, 'train')


def test_masks_of_unused_objects(config, tmp_path):
    box = dict(id=7, image_id=1, category_id=99, bbox=[1, 2, 3, 4], area=12)
    annotate(config, tmp_path, coco_with('0123456789', [box]))
    check_datasets(config, 'train')


def test_class_agnostic_masks(config):
    config.model.roi_head.mask_head.update(num_classes=80, class_agnostic=True)
    check_datasets(config, 'train')


def test_remote_data_are_not_checked(config):
    dataset = config.train_dataloader.dataset
    dataset.data_root = 's3://bucket/digits/'
    check_datasets(config, 'train')
    dataset.data_root = '/nowhere'
    dataset.backend_args = dict(backend='petrel')
    check_datasets(config, 'train')


def annotate_images(config, tmp_path, *names):
    """Annotations of images in tmp_path, of which two exist."""
    content = json.loads(coco_with('0123456789'))
    content['images'] = [
        dict(id=i, file_name=name) for i, name in enumerate(names)
    ]
    annotate(config, tmp_path, json.dumps(content))
    (tmp_path / 'sub').mkdir()
    for name in ('a.png', 'sub/b.png'):
        cv2.imwrite(str(tmp_path / name), np.zeros((4, 4, 3), np.uint8))
    dataset = config.train_dataloader.dataset
    dataset.data_root, dataset.data_prefix = str(tmp_path), dict(img='')


def test_images_in_subfolders(config, tmp_path):
    annotate_images(config, tmp_path, 'a.png', 'sub/b.png')
    check_datasets(config, 'train')


def test_missing_image_is_named(config, tmp_path):
    annotate_images(config, tmp_path, 'a.png', 'sub/c.png')
    message = r'1 of 2 images are missing from .*such as sub/c\.png'
    with pytest.raises(InputError, match=message):
        check_datasets(config, 'train')


@pytest.mark.parametrize('content', [b'', b'not a picture'])
def test_image_that_cannot_be_decoded_is_named(config, tmp_path, content):
    annotate_images(config, tmp_path, 'a.png', 'sub/b.png')
    (tmp_path / 'sub/b.png').write_bytes(content)
    with pytest.raises(InputError, match=r'sub/b\.png is empty or cannot be'):
        check_datasets(config, 'train')


def test_broken_image_of_a_label_map_dataset(segmentation, tmp_path):
    (tmp_path / 'train/000001.png').write_bytes(b'')
    with pytest.raises(InputError, match=r'000001\.png is empty or cannot'):
        check_datasets(segmentation, 'train')


def test_unusual_spellings_of_image_names(config, tmp_path):
    annotate_images(config, tmp_path, './a.png', 'sub//b.png')
    check_datasets(config, 'train')


def test_images_that_another_library_decodes(config, tmp_path):
    annotate_images(config, tmp_path, 'a.png', 'sub/b.png')
    (tmp_path / 'sub/b.png').write_bytes(b'a format that OpenCV cannot read')
    pipeline = config.train_dataloader.dataset.pipeline
    pipeline[0].imdecode_backend = 'pillow'
    check_datasets(config, 'train')
    (tmp_path / 'sub/b.png').write_bytes(b'')
    with pytest.raises(InputError, match=r'sub/b\.png is empty'):
        check_datasets(config, 'train')


def test_link_to_a_missing_image(config, tmp_path):
    annotate_images(config, tmp_path, 'a.png', 'sub/c.png')
    (tmp_path / 'sub/c.png').symlink_to(tmp_path / 'gone.png')
    with pytest.raises(InputError, match=r'such as sub/c\.png'):
        check_datasets(config, 'train')


def test_batch_norm_without_pooling_to_one_value():
    head = dict(type='PSPHead', norm_cfg=dict(type='BN'), pool_scales=(2, 3))
    config = Config(dict(model=dict(decode_head=head)))
    check_batch_norm(config)
    config.train_dataloader = dict(batch_size=1)
    check_batch_norm(config)
    config.model.decode_head.pool_scales = (1, 2)
    with pytest.raises(InputError, match='batch norm'):
        check_batch_norm(config)


@pytest.mark.parametrize('name', ['decode_head', 'auxiliary_head'])
def test_batch_norm_over_one_image(name):
    head = dict(type='UPerHead', norm_cfg=dict(type='BN'))
    config = Config(
        dict(train_dataloader=dict(batch_size=1), model={name: head})
    )
    with pytest.raises(InputError, match=f'{name}: batch norm.*SyncBN'):
        check_batch_norm(config)
    config.train_dataloader.batch_size = 2
    check_batch_norm(config)
    config.train_dataloader.batch_size = 1
    config.model[name].norm_cfg.type = 'SyncBN'
    check_batch_norm(config)
