"""Every leaf parses, is small, is named by the rule and builds."""

import importlib
import re
from pathlib import Path

import pytest
import torch
import yaml
from helpers import metadata
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmlaplacian.models import ARCHS

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
LEAVES = sorted(
    path
    for path in CONFIGS.rglob('*.py')
    if '_base_' not in path.relative_to(CONFIGS).parts
)
SIZES = [size for size in ARCHS if size != 'nano']
#: Leaf names of each task; the baselines stand beside the five sizes.
TASKS = {
    'mask_rcnn': 'mask-rcnn_{}_fpn_1x_coco.py',
    'retinanet': 'retinanet_{}_fpn_1x_coco.py',
    'semantic_fpn': 'semantic-fpn_{}_8xb4-40k_ade20k-512x512.py',
    'upernet': 'upernet_{}_8xb2-160k_ade20k-512x512.py',
}
#: Longer schedules: the five sizes.
LONG_TASKS = {
    'mask_rcnn': 'mask-rcnn_{}_fpn_ms-crop-3x_coco.py',
    'retinanet': 'retinanet_{}_fpn_ms-crop-3x_coco.py',
    'cascade_mask_rcnn': 'cascade-mask-rcnn_{}_fpn_ms-crop-3x_coco.py',
}
#: ImageNet: the five sizes and the baseline whose weights nobody published.
CLASSIFIERS = '{}_16xb64_in1k.py'
BASELINES = ('pvt-tiny', 'pvt-small', 'soft-like-tiny')
#: Drop path of the recipes, by size.
DROP_PATH = dict(tiny=0.1, small=0.1, medium=0.2, large=0.3, huge=0.3)
NAME = re.compile(
    r'(?:[a-z0-9-]+_)?(laplacianformer|pvt|soft-like)-([a-z]+)'
    r'(_[a-z0-9-]+)+\.py'
)


def leaf_id(path):
    return path.stem


@pytest.mark.parametrize('task', TASKS | LONG_TASKS)
def test_every_task_has_every_size_and_baseline(task):
    backbones = [f'laplacianformer-{size}' for size in SIZES]
    expected = set()
    if task in TASKS:
        expected |= {TASKS[task].format(b) for b in (*backbones, *BASELINES)}
    if task in LONG_TASKS:
        expected |= {LONG_TASKS[task].format(b) for b in backbones}
    assert {path.name for path in (CONFIGS / task).glob('*.py')} == expected


def test_imagenet_has_every_backbone_without_published_weights():
    backbones = [f'laplacianformer-{size}' for size in SIZES]
    expected = {CLASSIFIERS.format(b) for b in (*backbones, 'soft-like-tiny')}
    found = {path.name for path in (CONFIGS / 'imagenet').glob('*.py')}
    assert found == expected


@pytest.mark.parametrize('path', LEAVES, ids=leaf_id)
def test_leaf_is_small_and_well_named(path):
    assert len(path.read_text().splitlines()) <= 5
    assert NAME.fullmatch(path.name)


@pytest.mark.parametrize('path', LEAVES, ids=leaf_id)
def test_leaf_agrees_with_the_size_table(path):
    config = Config.fromfile(path)
    family, size = NAME.fullmatch(path.name).groups()[:2]
    backbone = config.model.backbone
    channels = ARCHS['nano' if size == 'nano' else 'tiny']['embed_dims']
    if config.default_scope == 'mmpretrain':
        assert config.model.head.in_channels == channels[-1]
        assert backbone.out_indices == (3,)
    else:
        part = config.model.get('neck') or config.model.decode_head
        assert tuple(part.in_channels) == channels
    assert config.custom_imports.imports == ['mmlaplacian']
    if family == 'laplacianformer':
        assert backbone.arch == size
        assert ARCHS[size]['embed_dims'] == channels
    if family == 'laplacianformer' and size != 'nano':
        assert backbone.drop_path_rate == DROP_PATH[size]
    if config.default_scope == 'mmpretrain' or size == 'nano':
        # These train from random weights.
        assert 'init_cfg' not in backbone
    elif family == 'laplacianformer':
        assert backbone.init_cfg == dict(
            type='Pretrained',
            checkpoint=f'checkpoints/laplacianformer-{size}_in1k.pth',
        )


def test_baselines_differ_in_the_backbone_alone():
    for task, name in TASKS.items():
        ours, *others = (
            Config.fromfile(CONFIGS / task / name.format(backbone)).to_dict()
            for backbone in ('laplacianformer-tiny', *BASELINES)
        )
        for other in others:
            backbones = [c['model'].pop('backbone') for c in (ours, other)]
            keys = {'train_cfg', 'optim_wrapper', 'param_scheduler', 'model'}
            for key in keys | {'train_dataloader', 'default_hooks'}:
                assert ours[key] == other[key], (task, key)
            ours['model']['backbone'] = backbones[0]


def build(path):
    config = Config.fromfile(path)
    registry = importlib.import_module(f'{config.default_scope}.registry')
    init_default_scope(config.default_scope)
    # mmdet's PVT reads values of tensors while it is built.
    meta = 'Pyramid' not in config.model.backbone.type
    with torch.device('meta' if meta else 'cpu'):
        return config, registry.MODELS.build(config.model)


@pytest.mark.parametrize('path', LEAVES, ids=leaf_id)
def test_leaf_builds(path, openmmlab):
    if Config.fromfile(path).default_scope == 'mmpretrain':
        pytest.skip('tests/pretrain builds classifiers')
    config, model = build(path)
    count = sum(p.numel() for p in model.parameters())
    assert count == metadata(path)['Parameters']
    part = config.model.get('neck') or config.model.decode_head
    if 'laplacianformer' in path.name:
        assert model.backbone.out_channels == tuple(part.in_channels)


@pytest.mark.parametrize(
    'task, optimizer',
    [
        ('mask_rcnn', dict(lr=2e-4, weight_decay=1e-4)),
        ('retinanet', dict(lr=1e-4, weight_decay=1e-4)),
        ('semantic_fpn', dict(lr=2e-4, weight_decay=1e-4)),
        ('upernet', dict(lr=6e-5, weight_decay=0.01)),
    ],
)
def test_optimizer_of_the_recipe(task, optimizer):
    name = TASKS[task].format('laplacianformer-tiny')
    config = Config.fromfile(CONFIGS / task / name)
    assert config.optim_wrapper.optimizer == dict(type='AdamW', **optimizer)


@pytest.mark.parametrize('task', ['mask_rcnn', 'retinanet'])
def test_coco_schedule(task):
    """The 1x schedule that the PVT family publishes."""
    name = TASKS[task].format('laplacianformer-tiny')
    config = Config.fromfile(CONFIGS / task / name)
    assert config.train_cfg.max_epochs == 12
    warmup, steps = config.param_scheduler
    assert (warmup.begin, warmup.end, warmup.by_epoch) == (0, 500, False)
    assert steps.milestones == [8, 11]
    assert config.optim_wrapper.paramwise_cfg == dict(
        norm_decay_mult=0.0, bias_decay_mult=0.0
    )
    assert config.auto_scale_lr.base_batch_size == 16
    assert config.train_dataloader.batch_size == 2
    assert config.model.neck.num_outs == 5


@pytest.mark.parametrize('task', LONG_TASKS)
def test_3x_schedule(task):
    """The published 3x schedule of PVTv2 and Swin; the rest is as in 1x."""
    name = LONG_TASKS[task].format('laplacianformer-tiny')
    config = Config.fromfile(CONFIGS / task / name)
    assert config.train_cfg.max_epochs == 36
    assert config.param_scheduler[1].milestones == [27, 33]
    assert config.param_scheduler[1].end == 36
    assert config.optim_wrapper.optimizer == dict(
        type='AdamW', lr=1e-4, weight_decay=0.05
    )
    if task in TASKS:
        short = Config.fromfile(
            CONFIGS / task / TASKS[task].format('laplacianformer-tiny')
        )
        for key in ('model', 'val_dataloader', 'val_evaluator', 'train_cfg'):
            ours, theirs = config[key].to_dict(), short[key].to_dict()
            if key == 'train_cfg':
                ours.pop('max_epochs'), theirs.pop('max_epochs')
            assert ours == theirs, key


@pytest.mark.parametrize(
    'task, iterations, batch', [('semantic_fpn', 40, 4), ('upernet', 160, 2)]
)
def test_ade20k_schedule(task, iterations, batch):
    name = TASKS[task].format('laplacianformer-tiny')
    config = Config.fromfile(CONFIGS / task / name)
    assert config.train_cfg.max_iters == 1000 * iterations
    assert config.param_scheduler[-1].end == 1000 * iterations
    assert config.train_dataloader.batch_size == batch
    assert config.auto_scale_lr.base_batch_size == 8 * batch


@pytest.mark.parametrize('size', SIZES)
def test_imagenet_recipe(size):
    """Hyperparameters of the PVT and SOFT family and of DeiT."""
    name = CLASSIFIERS.format(f'laplacianformer-{size}')
    config = Config.fromfile(CONFIGS / 'imagenet' / name)
    optimizer = dict(type='AdamW', lr=1e-3, weight_decay=0.05)
    assert config.optim_wrapper.optimizer == optimizer
    assert config.optim_wrapper.paramwise_cfg == dict(
        norm_decay_mult=0.0, bias_decay_mult=0.0
    )
    assert config.train_cfg.max_epochs == 300
    warmup, cosine = config.param_scheduler
    assert (warmup.begin, warmup.end, warmup.by_epoch) == (0, 5, True)
    assert (cosine.begin, cosine.end, cosine.T_max) == (5, 300, 295)
    assert 16 * config.train_dataloader.batch_size == 1024
    assert config.auto_scale_lr.base_batch_size == 1024
    mixes = config.model.train_cfg.augments
    assert {m.type: m.alpha for m in mixes} == dict(Mixup=0.8, CutMix=1.0)
    assert config.model.head.loss.label_smooth_val == 0.1
    steps = {s.type: s for s in config.train_dataloader.dataset.pipeline}
    assert steps['RandAugment'].magnitude_level == 9
    assert steps['RandomErasing'].erase_prob == 0.25


@pytest.mark.parametrize(
    'path', sorted(CONFIGS.glob('imagenet/*.py')), ids=leaf_id
)
def test_coco_starts_from_what_imagenet_trains(path):
    ours = Config.fromfile(path).model.backbone
    task = TASKS['mask_rcnn'].format(path.name.split('_')[0])
    theirs = Config.fromfile(CONFIGS / 'mask_rcnn' / task).model.backbone
    for part in ('type', 'arch', 'drop_path_rate', 'attention'):
        assert ours.get(part) == theirs.get(part)


def metafiles():
    index = yaml.safe_load((CONFIGS.parent / 'model-index.yml').read_text())
    return [CONFIGS.parent / name for name in index['Import']]


def test_every_config_is_in_a_metafile_once():
    models = [
        model
        for path in metafiles()
        for model in yaml.safe_load(path.read_text())['Models']
    ]
    listed = [CONFIGS.parent / model['Config'] for model in models]
    assert sorted(listed) == LEAVES
    for model, path in zip(models, listed, strict=True):
        assert model['Name'] == path.stem


@pytest.mark.parametrize('path', metafiles(), ids=lambda p: p.parent.name)
def test_metafile(path):
    content = yaml.safe_load(path.read_text())
    names = {c['Name'] for c in content['Collections']}
    for collection in content['Collections']:
        assert (CONFIGS.parent / collection['README']).is_file()
        assert collection['Paper']['URL'].startswith('https://')
    for model in content['Models']:
        assert model['In Collection'] in names
        # No weights are published: a link would be dead.
        assert 'Weights' not in model
