"""Weights that do not fit, each with its message."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import load_checkpoint

from mmlaplacian.checks.weights import check_checkpoint, check_pretrained
from mmlaplacian.errors import InputError
from mmlaplacian.models import LaplacianFormer

CONFIG = (
    Path(__file__).resolve().parents[2]
    / 'configs/mask_rcnn/mask-rcnn_laplacianformer-tiny_fpn_1x_coco.py'
)


@pytest.fixture
def nano():
    return LaplacianFormer('nano')


@pytest.fixture
def config():
    return Config(
        dict(
            model=dict(
                backbone=dict(
                    type='LaplacianFormer',
                    arch='nano',
                    init_cfg=dict(type='Pretrained', checkpoint='x.pth'),
                )
            )
        )
    )


def save(content, tmp_path):
    path = tmp_path / 'weights.pth'
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize(
    'wrap',
    [
        lambda s: s,
        lambda s: dict(state_dict=s, meta={}),
        lambda s: {f'module.{k}': v for k, v in s.items()},
    ],
)
def test_matching_checkpoint_is_what_mmengine_loads(nano, tmp_path, wrap):
    path = save(wrap(nano.state_dict()), tmp_path)
    other = LaplacianFormer('nano')
    check_checkpoint(other, path)
    load_checkpoint(other, path)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, nano.state_dict()[name]), name


def test_weights_where_mmengine_does_not_look(nano, tmp_path):
    path = save(dict(model=nano.state_dict()), tmp_path)
    with pytest.raises(InputError, match='under "model"') as caught:
        check_checkpoint(nano, path)
    assert f'convert_checkpoint.py publish {path} OUT' in str(caught.value)


def test_checkpoint_of_another_model(nano, tmp_path):
    other = LaplacianFormer(
        {**nano.arch, 'embed_dims': (8, 16, 32, 64), 'depths': (2, 1, 1, 1)}
    )
    path = save(other.state_dict(), tmp_path)
    with pytest.raises(InputError, match='does not hold') as caught:
        check_checkpoint(nano, path)
    message = str(caught.value)
    assert path in message and 'expected (16,), got (8,)' in message
    assert 'more' in message and 'trained with' in message


def test_a_single_missing_tensor(nano, tmp_path):
    state = nano.state_dict()
    del state['stages.3.norm.bias']
    with pytest.raises(InputError, match=r'1 of .*\n  stages.3.norm.bias'):
        check_checkpoint(nano, save(state, tmp_path))


def test_prefix_compares_the_backbone_alone(nano, tmp_path):
    model = torch.nn.ModuleDict(
        dict(backbone=nano, head=torch.nn.Linear(3, 3))
    )
    state = model.state_dict()
    state['head.weight'] = torch.zeros(5, 3)
    path = save(state, tmp_path)
    check_checkpoint(model, path, prefix='backbone.')
    with pytest.raises(InputError, match='head.weight'):
        check_checkpoint(model, path)


@pytest.mark.parametrize('content', [dict(), dict(a=1), [1, 2]])
def test_file_without_tensors(nano, tmp_path, content):
    with pytest.raises(InputError, match='holds no tensors'):
        check_checkpoint(nano, save(content, tmp_path))


def test_file_that_is_no_checkpoint(nano, tmp_path):
    path = tmp_path / 'weights.pth'
    path.write_text('hello')
    with pytest.raises(InputError, match='not a PyTorch checkpoint'):
        check_checkpoint(nano, str(path))


def test_missing_file(nano):
    with pytest.raises(InputError, match=r'none at .*gone\.pth'):
        check_checkpoint(nano, 'gone.pth')


def test_missing_pretrained_file_names_the_options():
    config = Config.fromfile(CONFIG)
    with pytest.raises(InputError) as caught:
        check_pretrained(config)
    message = str(caught.value)
    for part in (
        'checkpoints/laplacianformer-tiny_in1k.pth',
        'configs/imagenet/laplacianformer-tiny_16xb64_in1k.py, then run '
        'tools/convert_checkpoint.py backbone CHECKPOINT checkpoints/',
        'tools/convert_checkpoint.py warm-start FILE OUT --arch tiny',
        '--cfg-options model.backbone.init_cfg.checkpoint=FILE',
        '--from-scratch',
    ):
        assert part in message


@pytest.mark.parametrize('backbone', ['soft-like-tiny', 'pvt-tiny'])
def test_other_backbones_have_two_options(backbone):
    name = CONFIG.name.replace('laplacianformer-tiny', backbone)
    config = Config.fromfile(CONFIG.with_name(name))
    config.model.backbone.init_cfg.checkpoint = 'gone.pth'
    with pytest.raises(InputError, match='weights that you have') as caught:
        check_pretrained(config)
    message = str(caught.value)
    assert '(2) start from random weights' in message
    assert 'warm-start' not in message
    assert ('LaplacianFormer' in message) == (backbone != 'pvt-tiny')


@pytest.mark.parametrize('backbone', ['laplacianformer-tiny', 'pvt-tiny'])
def test_from_scratch_removes_the_entry(backbone):
    name = CONFIG.name.replace('laplacianformer-tiny', backbone)
    config = Config.fromfile(CONFIG.with_name(name))
    check_pretrained(config, from_scratch=True)
    assert config.model.backbone.init_cfg is None


def test_pretrained_classifier(config, nano, tmp_path):
    state = {**nano.state_dict(), 'head.weight': torch.zeros(10, 128)}
    config.model.backbone.init_cfg.checkpoint = save(state, tmp_path)
    check_pretrained(config)


def test_pretrained_with_prefix(config, nano, tmp_path):
    state = {f'backbone.{k}': v for k, v in nano.state_dict().items()}
    init_cfg = config.model.backbone.init_cfg
    init_cfg.checkpoint = save(state, tmp_path)
    with pytest.raises(InputError, match='missing'):
        check_pretrained(config)
    init_cfg.prefix = 'backbone.'
    check_pretrained(config)


def test_pretrained_weights_of_another_model(config, tmp_path):
    state = torch.nn.Linear(3, 3).state_dict()
    config.model.backbone.init_cfg.checkpoint = save(state, tmp_path)
    with pytest.raises(InputError, match='missing, expected'):
        check_pretrained(config)


def test_load_from_removes_the_entry():
    config = Config.fromfile(CONFIG)
    config.load_from = 'other.pth'
    check_pretrained(config)
    assert config.model.backbone.init_cfg is None
