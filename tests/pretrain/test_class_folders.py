"""Classification folders that cannot be trained on, with their messages."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mmlaplacian.checks.datasets import check_datasets
from mmlaplacian.errors import InputError

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'


@pytest.fixture
def config(mmpretrain, tmp_path):
    """A config of digits, with a folder for each class."""
    import mmpretrain.datasets  # noqa: F401

    config = Config.fromfile(
        CONFIGS / 'digits/laplacianformer-nano_digits-classes.py'
    )
    for split in ('train', 'val'):
        config[f'{split}_dataloader'].dataset.data_root = str(tmp_path)
        for name in '0123456789':
            (tmp_path / split / name).mkdir(parents=True)
    return config


def test_good_folders(config):
    check_datasets(config, 'train', 'val')


def test_missing_folder(config):
    config.train_dataloader.dataset.data_prefix = 'gone'
    with pytest.raises(InputError, match='gone.*prepare_data'):
        check_datasets(config, 'train')


def test_a_class_without_a_folder(config, tmp_path):
    (tmp_path / 'train/3').rmdir()
    with pytest.raises(InputError, match=r"10 in all, found 9 \('0', '1', '2"):
        check_datasets(config, 'train')


def test_images_without_folders(mmpretrain, tmp_path):
    """ImageNet's validation images come without class folders."""
    (path,) = CONFIGS.glob('imagenet/laplacianformer-tiny_*.py')
    config = Config.fromfile(path)
    dataset = config.val_dataloader.dataset
    dataset.data_root = str(tmp_path)
    (tmp_path / 'val').mkdir()
    (tmp_path / 'val/ILSVRC2012_val_00000001.JPEG').touch()
    with pytest.raises(InputError, match='1000 in all, found 0') as caught:
        check_datasets(config, 'val')
    assert 'ann_file' in str(caught.value)
    dataset.ann_file = 'meta/val.txt'
    with pytest.raises(InputError, match=r'label in each line.*meta/val\.txt'):
        check_datasets(config, 'val')
    (tmp_path / 'meta').mkdir()
    (tmp_path / 'meta/val.txt').write_text('ILSVRC2012_val_00000001.JPEG 65\n')
    check_datasets(config, 'val')


def test_classes_in_another_order(config):
    classes = config.train_dataloader.dataset.metainfo.classes
    config.train_dataloader.dataset.metainfo.classes = classes[::-1]
    with pytest.raises(InputError, match='labels would be exchanged'):
        check_datasets(config, 'train')


@pytest.mark.parametrize('part', ['head', 'data_preprocessor'])
def test_another_number_of_classes(config, part):
    config.model[part].num_classes = 1000
    with pytest.raises(InputError, match=f'{part}.num_classes is 1000'):
        check_datasets(config, 'train')


def test_folders_define_classes_that_the_config_lacks(config):
    config.train_dataloader.dataset.metainfo = None
    check_datasets(config, 'train')
    config.model.head.num_classes = 9
    with pytest.raises(InputError, match='num_classes is 9'):
        check_datasets(config, 'train')
