"""tools/prepare_data.py check."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

from mmlaplacian.checks import folders

TOOL = Path(__file__).resolve().parents[2] / 'tools/prepare_data.py'


def run(*arguments):
    result = subprocess.run(
        [sys.executable, TOOL, 'check', *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stdout + result.stderr


def coco(path, names=('cat', 'dog'), images=('a.jpg', 'b.jpg')):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            dict(
                images=[dict(id=i, file_name=n) for i, n in enumerate(images)],
                annotations=[
                    dict(id=i, image_id=0, category_id=i)
                    for i in range(len(names))
                ],
                categories=[dict(id=i, name=n) for i, n in enumerate(names)],
            )
        )
    )


def test_missing_coco(tmp_path):
    code, text = run('coco', '--root', tmp_path)
    assert code == 1
    assert 'Expected in data/coco:' in text and '118287 .jpg files' in text
    assert f'{tmp_path}/annotations/instances_train2017.json: no such' in text
    assert f'{tmp_path}/val2017: no such folder' in text


def test_incomplete_ade20k(tmp_path):
    for part in folders.KNOWN['ade20k'][1]:
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / 'images/training/a.jpg').touch()
    code, text = run('ade20k', '--root', tmp_path)
    assert code == 1
    assert 'images/training: expected 20210 .jpg files, found 1' in text


def test_complete_folder(tmp_path, monkeypatch):
    parts = {'annotations/x.json': None, 'x': (1, '.jpg')}
    monkeypatch.setitem(folders.KNOWN, 'coco', ('data/coco', parts))
    coco(tmp_path / 'annotations/x.json')
    (tmp_path / 'x').mkdir()
    (tmp_path / 'x/a.jpg').touch()
    assert folders.check_known('coco', tmp_path) == []


def test_own_coco(tmp_path):
    coco(tmp_path / 'annotations/train.json')
    (tmp_path / 'train').mkdir()
    (tmp_path / 'train/a.jpg').touch()
    code, text = run(tmp_path)
    assert code == 1
    assert "classes=('cat', 'dog',)" in text and '2 images, 2 objects' in text
    assert '1 of 2 images are not in' in text and 'b.jpg' in text
    assert 'boxes only' in text
    (tmp_path / 'train/b.jpg').touch()
    code, text = run(tmp_path)
    assert code == 0 and 'complete' in text and 'images in' in text


def test_images_in_linked_and_nested_folders(tmp_path):
    elsewhere = tmp_path / 'elsewhere'
    (elsewhere / 'deep/x').mkdir(parents=True)
    for name in ('x/a.jpg', 'b.jpg'):
        (elsewhere / 'deep' / name).touch()
    (elsewhere / 'loop').symlink_to(elsewhere)
    root = tmp_path / 'root'
    coco(root / 'train.json', images=('x/a.jpg', './b.jpg'))
    (root / 'linked').symlink_to(elsewhere)
    found, problems = folders.check_own(root)
    assert f'  images in {root}/linked/deep' in found and not problems
    coco(root / 'train.json', images=('x/a.jpg', 'c.jpg'))
    (elsewhere / 'deep/c.jpg').symlink_to('gone.jpg')
    _, problems = folders.check_own(root)
    assert problems == [
        f'{root}/train.json: 1 of 2 images are not in {root}/linked/deep, '
        'such as c.jpg'
    ]


def test_own_coco_with_wrong_categories(tmp_path):
    coco(tmp_path / 'all.json', images=())
    content = json.loads((tmp_path / 'all.json').read_text())
    content['annotations'][0]['category_id'] = 9
    (tmp_path / 'all.json').write_text(json.dumps(content))
    code, text = run(tmp_path)
    assert code == 1
    assert "no object of the class 'cat'" in text
    assert 'category_id [9]' in text


def test_own_label_maps(tmp_path):
    for folder, names in (('images', 'ab'), ('annotations', 'bc')):
        suffix = '.jpg' if folder == 'images' else '.png'
        place = tmp_path / folder / 'train'
        place.mkdir(parents=True)
        for name in names:
            cv2.imwrite(
                str(place / f'{name}{suffix}'), np.zeros((4, 4), np.uint8)
            )
    code, text = run(tmp_path)
    assert code == 1
    assert '1 images without a map, such as a' in text
    assert '1 maps without an image, such as c' in text


def test_neither(tmp_path):
    code, text = run(tmp_path)
    assert code == 1
    assert 'PATH/annotations/train.json' in text and 'no .json file' in text
