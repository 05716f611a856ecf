import json

import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_api

from mmlaplacian.datasets import digits
from mmlaplacian.datasets.packages import find_file


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    out = tmp_path_factory.mktemp('digits')
    digits.write_digits(out, dict(train=60, val=40), seed=3)
    return out


def annotations(folder, split):
    return json.loads((folder / 'annotations' / f'{split}.json').read_text())


def test_the_digits_are_real_mnist():
    images, labels = digits.load_mnist()
    assert images.shape == (5000, 28, 28) and images.dtype == np.uint8
    assert (np.bincount(labels) == 500).all()


def test_splits_share_no_digit():
    _, labels = digits.load_mnist()
    pools = digits.split_digits(labels, seed=0)
    for digit, (train, val) in enumerate(
        zip(pools['train'], pools['val'], strict=True)
    ):
        assert not set(train) & set(val)
        assert len(train) == 400 and len(val) == 100
        assert (labels[[*train, *val]] == digit).all()


@pytest.mark.parametrize('split', digits.SPLITS)
def test_boxes_masks_and_semantics_agree(scenes, split):
    coco = annotations(scenes, split)
    assert coco['annotations']
    by_image = {image['id']: [] for image in coco['images']}
    for found in coco['annotations']:
        by_image[found['image_id']].append(found)
    for image in coco['images']:
        picture = cv2.imread(str(scenes / split / image['file_name']))
        assert picture.shape == (image['height'], image['width'], 3)
        expected = np.zeros(picture.shape[:2], np.uint8)
        for found in by_image[image['id']]:
            mask = mask_api.decode(found['segmentation']).astype(bool)
            assert not expected[mask].any(), 'masks overlap'
            expected[mask] = found['category_id']
            assert found['area'] == mask.sum() > 0
            rows, columns = np.nonzero(mask)
            assert found['bbox'] == [
                columns.min(),
                rows.min(),
                columns.max() - columns.min() + 1,
                rows.max() - rows.min() + 1,
            ]
        semantic = cv2.imread(
            str(scenes / 'semantic' / split / image['file_name']), -1
        )
        assert (semantic == expected).all()


def test_every_size_bucket_is_filled(scenes):
    areas = [a['area'] for a in annotations(scenes, 'train')['annotations']]
    small = sum(area < 32**2 for area in areas)
    large = sum(area >= 96**2 for area in areas)
    assert small and large and len(areas) - small - large


def test_same_seed_same_files(scenes, tmp_path):
    digits.write_digits(tmp_path, dict(val=5), seed=3)
    again = (tmp_path / 'val/000004.png').read_bytes()
    assert again == (scenes / 'val/000004.png').read_bytes()
    digits.write_digits(tmp_path, dict(val=5), seed=4)
    assert again != (tmp_path / 'val/000004.png').read_bytes()


def test_side_out_of_range(tmp_path):
    with pytest.raises(ValueError, match='192 to 256 pixels, got 100'):
        digits.write_digits(tmp_path, dict(val=1), side=100)
    assert not list(tmp_path.iterdir())


def test_missing_package_is_named():
    with pytest.raises(FileNotFoundError, match='pip install --no-deps gone'):
        find_file('gone', 'data.csv')
    with pytest.raises(FileNotFoundError, match='part of the package num'):
        find_file('numpy', 'data.csv')


@pytest.fixture(scope='module')
def classes(tmp_path_factory):
    out = tmp_path_factory.mktemp('classes')
    digits.write_classes(out, dict(train=25, val=20), side=64, seed=3)
    return out


def test_classes_have_a_folder_each(classes):
    for split, size in (('train', 25), ('val', 20)):
        names = sorted(p.name for p in (classes / split).iterdir())
        assert names == list(digits.CLASSES)
        paths = list((classes / split).rglob('*.png'))
        assert len(paths) == size
        for path in paths:
            assert int(path.stem) % 10 == int(path.parent.name)
            assert cv2.imread(str(path)).shape == (64, 64, 3)


def test_classes_skip_the_digits_of_validation_scenes(tmp_path, monkeypatch):
    used, compose = {}, digits.compose_digit
    images, labels = digits.load_mnist()

    def note(rng, digit, side):
        used.setdefault(split, set()).add(digit.tobytes())
        return compose(rng, digit, side)

    monkeypatch.setattr(digits, 'compose_digit', note)
    for split in digits.SPLITS:
        digits.write_classes(tmp_path, {split: 1000}, side=32, seed=0)
    pool = np.concatenate(digits.split_digits(labels, seed=0)['val'])
    # 1,000 pictures use every validation digit once.
    assert used['val'] == {images[i].tobytes() for i in pool}
    assert not used['val'] & used['train']
    assert len(used['train']) == 1000


def test_same_seed_same_classes(classes, tmp_path):
    digits.write_classes(tmp_path, dict(val=5), side=64, seed=3)
    again = (tmp_path / 'val/4/000004.png').read_bytes()
    assert again == (classes / 'val/4/000004.png').read_bytes()
    (tmp_path / 'val/4/000099.png').write_bytes(b'stale')
    digits.write_classes(tmp_path, dict(val=5), side=64, seed=4)
    assert again != (tmp_path / 'val/4/000004.png').read_bytes()
    assert len(list(tmp_path.rglob('*.png'))) == 5


def test_side_of_classes_out_of_range(tmp_path):
    with pytest.raises(ValueError, match='at least 32 pixels, got 20'):
        digits.write_classes(tmp_path, dict(val=1), side=20)


def test_invalid_size_of_classes(tmp_path):
    with pytest.raises(ValueError, match='at least 1'):
        digits.write_classes(tmp_path, dict(train=-5))


@pytest.mark.parametrize('write', [digits.write_classes, digits.write_digits])
def test_other_files_are_not_overwritten(write, tmp_path):
    place = '3' if write is digits.write_classes else ''
    own = tmp_path / 'val' / place / '000123.png'
    own.parent.mkdir(parents=True)
    own.write_bytes(b'mine')
    with pytest.raises(FileExistsError, match='did not write'):
        write(tmp_path, dict(val=2))
    assert own.read_bytes() == b'mine'
    own.unlink()
    for _ in range(2):
        write(tmp_path, dict(val=2))
