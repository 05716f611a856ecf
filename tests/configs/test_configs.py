"""Every leaf parses, is small, is named by the rule and builds."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmlaplacian.models import ARCHS

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
LEAVES = sorted(
    p
    for p in CONFIGS.rglob('*.py')
    if '_base_' not in p.relative_to(CONFIGS).parts
)
SIZES = [size for size in ARCHS if size != 'nano']
#: Drop path of the recipes, by size.
DROP_PATH = dict(tiny=0.1, small=0.1, medium=0.2, large=0.3, huge=0.3)
NAME = re.compile(r'[a-z0-9.-]+_laplacianformer-([a-z]+)(_[a-z0-9.-]+)+\.py')


def leaf_id(path):
    return path.stem


def test_every_size_has_a_config():
    names = {p.name for p in LEAVES}
    for size in SIZES:
        assert f'mask-rcnn_laplacianformer-{size}_fpn_1x_coco.py' in names


@pytest.mark.parametrize('path', LEAVES, ids=leaf_id)
def test_leaf_is_small_and_well_named(path):
    assert len(path.read_text().splitlines()) <= 5
    assert NAME.fullmatch(path.name)


@pytest.mark.parametrize('path', LEAVES, ids=leaf_id)
def test_leaf_agrees_with_the_size_table(path):
    config = Config.fromfile(path)
    size = NAME.fullmatch(path.name)[1]
    backbone = config.model.backbone
    assert backbone.arch == size
    assert tuple(config.model.neck.in_channels) == ARCHS[size]['embed_dims']
    assert config.custom_imports.imports == ['mmlaplacian']
    if path.parent.name != 'digits':
        assert backbone.drop_path_rate == DROP_PATH[size]
        assert backbone.init_cfg == dict(
            type='Pretrained',
            checkpoint=f'checkpoints/laplacianformer-{size}_in1k.pth',
        )


@pytest.mark.parametrize('path', LEAVES, ids=leaf_id)
def test_leaf_builds(path, openmmlab):
    from mmdet.registry import MODELS
    from mmengine.registry import init_default_scope

    config = Config.fromfile(path)
    init_default_scope(config.default_scope)
    with torch.device('meta'):
        model = MODELS.build(config.model)
    assert model.backbone.out_channels == tuple(model.neck.in_channels)


def test_coco_recipe():
    """The values of the 1x schedule that the family publishes."""
    config = Config.fromfile(
        CONFIGS / 'mask_rcnn/mask-rcnn_laplacianformer-tiny_fpn_1x_coco.py'
    )
    assert config.train_cfg.max_epochs == 12
    warmup, steps = config.param_scheduler
    assert (warmup.begin, warmup.end, warmup.by_epoch) == (0, 500, False)
    assert steps.milestones == [8, 11]
    optimizer = config.optim_wrapper.optimizer
    assert optimizer == dict(type='AdamW', lr=2e-4, weight_decay=1e-4)
    assert config.optim_wrapper.paramwise_cfg == dict(
        norm_decay_mult=0.0, bias_decay_mult=0.0
    )
    assert config.auto_scale_lr.base_batch_size == 16
    assert config.train_dataloader.batch_size == 2
    assert config.model.neck.num_outs == 5
