"""Segmentation on LaplacianFormer, in this process."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmlaplacian.checks.models import check_batch_norm
from mmlaplacian.errors import InputError
from mmlaplacian.launch.processes import plain_batch_norm
from mmlaplacian.models import ARCHS

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
LEAVES = {
    'semantic-fpn': 'semantic_fpn/semantic-fpn_laplacianformer-tiny'
    '_8xb4-40k_ade20k-512x512.py',
    'upernet': 'upernet/upernet_laplacianformer-tiny'
    '_8xb2-160k_ade20k-512x512.py',
}
SIDE = 64


def nano(task, openmmlab):
    """The ADE20K model of a task with the nano backbone, in float32."""
    from mmseg.registry import MODELS

    config = Config.fromfile(CONFIGS / LEAVES[task])
    channels = list(ARCHS['nano']['embed_dims'])
    config.model.backbone.update(arch='nano', init_cfg=None)
    config.model.data_preprocessor.size = (SIDE, SIDE)
    if task == 'upernet':
        config.model.decode_head.in_channels = channels
        config.model.auxiliary_head.in_channels = channels[2]
    else:
        config.model.neck.in_channels = channels
    plain_batch_norm(config)
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model)
    model.init_weights()
    return config, model


def batch(size, number=2):
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    samples = []
    for _ in range(number):
        sample = SegDataSample(
            metainfo=dict(img_shape=size, ori_shape=size, pad_shape=size)
        )
        labels = torch.randint(0, 150, (1, *size))
        sample.gt_sem_seg = PixelData(data=labels)
        samples.append(sample)
    images = [
        torch.randint(0, 255, (3, *size), dtype=torch.uint8)
        for _ in range(number)
    ]
    return dict(inputs=images, data_samples=samples)


def losses_of(model, data):
    data = model.data_preprocessor(data, training=True)
    return model.parse_losses(model(**data, mode='loss'))


@pytest.mark.parametrize('task', LEAVES)
# (40, 56) is smaller than the crop, and is padded with ignored labels.
@pytest.mark.parametrize('size', [(SIDE, SIDE), (40, 56)])
def test_one_step_and_one_prediction(task, size, openmmlab):
    _, model = nano(task, openmmlab)
    total, parts = losses_of(model, batch(size))
    total.backward()
    assert all(v.isfinite().all() for v in parts.values())
    missing = [n for n, p in model.named_parameters() if p.grad is None]
    assert not missing
    torch.optim.AdamW(model.parameters(), lr=1e-3).step()
    model.eval()
    with torch.no_grad():
        results = model.test_step(batch((45, 77), 1))
    labels = results[0].pred_sem_seg.data
    assert labels.shape == (1, 45, 77)
    assert labels.min() >= 0 and labels.max() < 150


def test_one_image_in_a_step_fails_as_the_check_says(openmmlab):
    config, model = nano('upernet', openmmlab)
    with pytest.raises(ValueError, match='Expected more than 1 value'):
        losses_of(model, batch((SIDE, SIDE), 1))
    config.train_dataloader.batch_size = 1
    with pytest.raises(InputError, match='batch_size is 1.*SyncBN'):
        check_batch_norm(config)


def test_crop_larger_than_the_image(tmp_path, openmmlab):
    from mmseg.registry import DATASETS

    config, model = nano('semantic-fpn', openmmlab)
    for folder, suffix in (('images', 'jpg'), ('annotations', 'png')):
        (tmp_path / folder / 'training').mkdir(parents=True)
        for i in range(2):
            picture = np.full((50, 30), 7 + i, np.uint8)
            path = tmp_path / folder / f'training/{i}.{suffix}'
            cv2.imwrite(str(path), picture)
    dataset = config.train_dataloader.dataset
    dataset.data_root = str(tmp_path)
    for step in dataset.pipeline:
        if step['type'] == 'RandomResize':
            step.update(scale=(60, 40), ratio_range=(0.5, 1.0))
    built = DATASETS.build(dataset)
    model.data_preprocessor.size = (512, 512)
    items = [built[i] for i in range(2)]
    assert all(max(i['inputs'].shape[-2:]) < 512 for i in items)
    data = {key: [item[key] for item in items] for key in items[0]}
    data = model.data_preprocessor(data, training=True)
    assert data['inputs'].shape[-2:] == (512, 512)
    assert (data['data_samples'][0].gt_sem_seg.data == 255).any()
