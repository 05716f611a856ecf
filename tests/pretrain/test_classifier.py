"""LaplacianFormer in mmpretrain's classifier, in this process."""

from pathlib import Path

import pytest
import torch
from helpers import metadata
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmlaplacian.apis import count
from mmlaplacian.launch.config import load_config, use_scope
from mmlaplacian.models import ARCHS, LaplacianFormer

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
IMAGENET = sorted(CONFIGS.glob('imagenet/*.py'))
DIGITS = CONFIGS / 'digits/laplacianformer-nano_digits-classes.py'
SIDE = 64


def build(config):
    from mmpretrain.registry import MODELS

    use_scope(config)
    return MODELS.build(config.model)


def nano():
    """The ImageNet recipe with the nano backbone."""
    config = load_config(IMAGENET[-2])
    config.model.backbone.arch = 'nano'
    config.model.head.in_channels = ARCHS['nano']['embed_dims'][-1]
    model = build(config)
    model.init_weights()
    return model


def batch(number):
    from mmpretrain.structures import DataSample

    return dict(
        inputs=torch.randint(0, 255, (number, 3, SIDE, SIDE)).byte(),
        data_samples=[
            DataSample().set_gt_label(i % 1000) for i in range(number)
        ],
    )


@pytest.mark.parametrize(
    'path', [*IMAGENET, DIGITS], ids=lambda path: path.stem
)
def test_leaf_builds(path, mmpretrain):
    config = load_config(path)
    with torch.device('meta'):
        model = build(config)
    assert model.backbone.out_channels == (config.model.head.in_channels,)
    total = sum(p.numel() for p in model.parameters())
    assert total == metadata(path)['Parameters']
    optimized = {name.split('.')[0] for name, _ in model.named_parameters()}
    assert optimized == {'backbone', 'head'}


@pytest.mark.parametrize('scope', ['mmpretrain', 'mmengine'])
def test_the_bare_name_is_known(scope, mmpretrain):
    import mmpretrain.models  # noqa: F401
    from mmpretrain.registry import MODELS

    init_default_scope(scope)
    model = MODELS.build(dict(type='LaplacianFormer', arch='nano'))
    assert type(model) is LaplacianFormer


def test_one_step_with_mixed_labels(mmpretrain):
    model = nano()
    data = model.data_preprocessor(batch(4), training=True)
    labels = torch.stack([s.gt_score for s in data['data_samples']])
    assert labels.shape == (4, 1000)
    assert torch.allclose(labels.sum(1), torch.ones(4))
    loss = model(**data, mode='loss')['loss']
    loss.backward()
    assert loss.isfinite()
    missing = [n for n, p in model.named_parameters() if p.grad is None]
    assert not missing
    before = model.head.fc.weight.clone()
    torch.optim.AdamW(model.parameters(), lr=1e-3).step()
    assert not torch.equal(model.head.fc.weight, before)


def test_one_prediction(mmpretrain):
    model = nano().eval()
    with torch.no_grad():
        results = model.test_step(batch(2))
    assert len(results) == 2
    for result in results:
        assert result.pred_score.shape == (1000,)
        assert result.pred_score.sum() == pytest.approx(1, abs=1e-5)
        assert 0 <= int(result.pred_label) < 1000


def test_the_pipeline_of_imagenet(mmpretrain, tmp_path):
    """Every augmentation of the recipe, on a picture."""
    import cv2
    import numpy as np
    from mmpretrain.registry import DATASETS

    config = Config.fromfile(IMAGENET[0])
    picture = np.random.default_rng(0).integers(0, 255, (90, 120, 3))
    for name in ('a', 'b'):
        folder = tmp_path / 'train' / name
        folder.mkdir(parents=True)
        cv2.imwrite(str(folder / '0.jpg'), picture.astype(np.uint8))
    use_scope(config)
    for loader in (config.train_dataloader, config.val_dataloader):
        dataset = DATASETS.build(
            dict(
                loader.dataset,
                data_root=str(tmp_path),
                data_prefix='train',
                metainfo=dict(classes=('a', 'b')),
            )
        )
        for i in range(8):
            sample = dataset[i % 2]
            assert sample['inputs'].shape == (3, 224, 224)
            assert int(sample['data_samples'].gt_label) == i % 2


def test_operations_are_counted(mmpretrain):
    """The count of the README's table for tiny, with mmpretrain's class."""
    (path,) = CONFIGS.glob('imagenet/laplacianformer-tiny_*.py')
    with torch.device('meta'):
        model = build(load_config(path)).eval()
        result = count(model, torch.zeros(1, 3, 224, 224))
    assert f'{result.parameters / 1e6:.2f}' == '12.06'
    assert f'{result.core / 1e9:.2f}' == '2.13'
