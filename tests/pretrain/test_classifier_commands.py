"""Commands from pictures of digits to a backbone for detectors."""

import pickle
from pathlib import Path

import cv2
import pytest
import torch
from helpers import run_python
from torch import nn

from mmlaplacian.checks.weights import check_checkpoint
from mmlaplacian.models import LaplacianFormer

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs/digits/laplacianformer-nano_digits-classes.py'
IMAGENET = ROOT / 'configs/imagenet/laplacianformer-tiny_16xb64_in1k.py'


@pytest.fixture(scope='module')
def trained(tmp_path_factory, mmpretrain):
    """Text and directory of two epochs on a few pictures."""
    place = tmp_path_factory.mktemp('place')
    tool = (ROOT / 'tools/prepare_data.py', 'digits-classes')
    text = run_python(place, *tool, '--train', 40, '--val', 20)
    assert 'train: 40 pictures of one digit' in text
    text = run_python(
        place,
        *(ROOT / 'tools/train.py', CONFIG, '--work-dir', 'work'),
        *('--auto-scale-lr', '--cfg-options', 'train_cfg.max_epochs=2'),
        *('train_cfg.val_interval=1', 'train_dataloader.batch_size=16'),
    )
    return text, place


def test_train_evaluates_and_saves(trained):
    text, place = trained
    assert 'starts from random weights' in text
    assert 'accuracy/top1' in text and 'loss' in text
    assert 'Scaling the original LR by 0.25' in text
    assert (place / 'work/epoch_2.pth').is_file()


def test_test_writes_metrics_pictures_and_predictions(trained):
    _, place = trained
    text = run_python(
        place,
        *(ROOT / 'tools/test.py', CONFIG, 'work/epoch_2.pth'),
        *('--work-dir', 'tested', '--show-dir', 'shown', '--out', 'out.pkl'),
    )
    assert 'accuracy/top1' in text
    pictures = list((place / 'shown').iterdir())
    assert len(pictures) == 20
    assert cv2.imread(str(pictures[0])) is not None
    assert len(pickle.loads((place / 'out.pkl').read_bytes())) == 20


def test_detectors_can_start_from_the_classifier(trained):
    """tools/train.py accepts the classifier as ``load_from``."""
    detector = nn.ModuleDict(dict(backbone=LaplacianFormer('nano')))
    path = trained[1] / 'work/epoch_2.pth'
    check_checkpoint(detector, str(path), 'backbone.')


def test_the_backbone_alone(trained):
    tool = ROOT / 'tools/convert_checkpoint.py'
    if not tool.is_file():
        pytest.skip('tools/convert_checkpoint.py is not there')
    _, place = trained
    run_python(place, tool, 'backbone', 'work/epoch_2.pth', 'backbone.pth')
    init_cfg = dict(type='Pretrained', checkpoint=f'{place}/backbone.pth')
    backbone = LaplacianFormer('nano', init_cfg=init_cfg)
    backbone.init_weights()
    state = torch.load(place / 'work/epoch_2.pth', weights_only=False)
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, state['state_dict'][f'backbone.{name}'])


def test_missing_imagenet(trained):
    text = run_python(
        trained[1], ROOT / 'tools/train.py', IMAGENET, fails=True
    )
    assert 'data/imagenet/train' in text and 'Traceback' not in text


def test_flops_of_a_classifier(trained):
    text = run_python(
        trained[1], ROOT / 'tools/analysis_tools/get_flops.py', IMAGENET
    )
    assert 'ImageClassifier at 224 x 224' in text
    assert '12.06 M' in text and '2.13 G' in text


def test_browse_dataset(trained):
    tool = (
        ROOT / 'tools/analysis_tools/browse_dataset.py',
        CONFIG,
        '--number',
        3,
    )
    assert '3 pictures' in run_python(trained[1], *tool)
    pictures = list((trained[1] / 'browse').iterdir())
    assert len(pictures) == 3
    assert cv2.imread(str(pictures[0])) is not None


def test_image_demo_is_not_for_classifiers(trained):
    picture = 'data/digits-classes/val/0/000000.png'
    text = run_python(
        trained[1],
        *(ROOT / 'tools/image_demo.py', picture, CONFIG, 'work/epoch_2.pth'),
        fails=True,
    )
    assert 'test.py --show-dir' in text and 'Traceback' not in text


def test_an_average_of_the_weights(trained):
    """The option that configs/imagenet/README.md names."""
    text = run_python(
        trained[1],
        *(ROOT / 'tools/train.py', CONFIG, '--work-dir', 'averaged'),
        *('--cfg-options', 'train_cfg.max_epochs=1'),
        *('default_hooks.ema.type=EMAHook', 'default_hooks.ema.momentum=0.1'),
        *('train_cfg.val_interval=1', 'train_dataloader.batch_size=16'),
    )
    assert 'accuracy/top1' in text
    path = trained[1] / 'averaged/epoch_1.pth'
    state = torch.load(path, weights_only=False)
    name = 'head.fc.weight'
    averaged = state['ema_state_dict'][f'module.{name}']
    assert not torch.equal(averaged, state['state_dict'][name])


def test_the_report(mmpretrain, tmp_path):
    text = run_python(tmp_path, '-m', 'mmlaplacian.check_env', '--pretrain')
    assert 'all packages that training needs can be imported' in text
