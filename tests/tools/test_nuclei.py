import json

import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_api

from mmlaplacian.datasets import nuclei


@pytest.fixture(scope='module')
def crops(tmp_path_factory):
    out = tmp_path_factory.mktemp('nuclei')
    nuclei.write_nuclei(out)
    return out


def test_the_image_is_real_and_labelled():
    picture, instances = nuclei.load_image()
    assert picture.shape == instances.shape == (512, 512)
    assert picture.dtype == np.uint8 and picture.std() > 20
    assert len(np.unique(instances)) - 1 == 125


def test_splits_share_no_pixel():
    # Crops of an image whose pixels are their own numbers.
    pixels = np.arange(512 * 512).reshape(512, 512)
    seen = {
        split: set(np.unique([crop for crop, _ in crops]))
        for split, crops in nuclei.cut(pixels, np.zeros_like(pixels)).items()
    }
    assert not seen['train'] & seen['val']
    assert len(seen['val']) == 512 * (512 - nuclei.BORDER)


def test_validation_tiles_its_part(crops):
    picture, instances = nuclei.load_image()
    rows = [cv2.imread(str(crops / f'val/00000{i}.png'), 0) for i in range(4)]
    whole = np.vstack(rows).astype(int)
    part = picture[:, nuclei.BORDER :].astype(int)
    assert (whole == part).all()
    semantic = np.vstack(
        [
            cv2.imread(str(crops / f'semantic/val/00000{i}.png'), -1)
            for i in range(4)
        ]
    )
    expected = instances[:, nuclei.BORDER :] > 0
    # Pieces of less than MIN_PIECE pixels are skipped.
    assert not (semantic.astype(bool) & ~expected).any()
    assert (semantic.astype(bool) != expected).mean() < 1e-3


@pytest.mark.parametrize('split', ['train', 'val'])
def test_masks_are_single_nuclei(crops, split):
    coco = json.loads((crops / f'annotations/{split}.json').read_text())
    assert coco['categories'] == [dict(id=1, name='nucleus')]
    assert len(coco['annotations']) > 30
    for found in coco['annotations']:
        mask = mask_api.decode(found['segmentation'])
        assert nuclei.MIN_PIECE <= mask.sum() < 2500
