"""Detectors on LaplacianFormer, in this process."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from mmlaplacian.launch.layout import keep_roi_align_contiguous

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
DIGITS = CONFIGS / 'digits'
SIDE = 64


def build(name):
    from mmdet.registry import MODELS

    config = Config.fromfile(DIGITS / f'{name}.py')
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model)
    model.init_weights()
    return model


def cascade():
    """Cascade Mask R-CNN of the 3x configs, on nano."""
    from mmdet.registry import MODELS

    from mmlaplacian.launch.processes import plain_batch_norm

    config = Config.fromfile(
        CONFIGS / 'cascade_mask_rcnn/'
        'cascade-mask-rcnn_laplacianformer-tiny_fpn_ms-crop-3x_coco.py'
    )
    config.merge_from_dict(
        {
            'model.backbone.arch': 'nano',
            'model.backbone.init_cfg': None,
            'model.neck.in_channels': [16, 32, 64, 128],
        }
    )
    # The sizes of the heads do not matter here, and take most of the time.
    config.model.train_cfg.rpn_proposal.max_per_img = 200
    config.model.test_cfg.rpn.max_per_img = 200
    for head, stage in zip(
        config.model.roi_head.bbox_head,
        config.model.train_cfg.rcnn,
        strict=True,
    ):
        head.update(conv_out_channels=32, fc_out_channels=64)
        stage.sampler.num = 64
    plain_batch_norm(config)
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model)
    model.init_weights()
    return model


@pytest.fixture
def detector(openmmlab):
    """Mask R-CNN."""
    return build('mask-rcnn_laplacianformer-nano_fpn_digits')


@pytest.fixture(params=['mask-rcnn', 'retinanet', 'cascade'])
def any_detector(request, openmmlab):
    if request.param == 'cascade':
        return cascade()
    return build(f'{request.param}_laplacianformer-nano_fpn_digits')


def batch(objects_per_image):
    """Made-up images with square objects."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    samples = []
    for count in objects_per_image:
        corner = torch.randint(0, SIDE // 2, (count, 2)).float()
        boxes = torch.cat([corner, corner + SIDE // 3], 1)
        masks = np.zeros((count, SIDE, SIDE), np.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.int(), strict=True):
            mask[y1:y2, x1:x2] = 1
        sample = DetDataSample(
            metainfo=dict(
                img_shape=(SIDE, SIDE),
                ori_shape=(SIDE, SIDE),
                scale_factor=(1.0, 1.0),
            )
        )
        sample.gt_instances = InstanceData(
            bboxes=boxes,
            labels=torch.randint(0, 10, (count,)),
            masks=BitmapMasks(masks, SIDE, SIDE),
        )
        samples.append(sample)
    images = [
        torch.randint(0, 255, (3, SIDE, SIDE), dtype=torch.uint8)
        for _ in objects_per_image
    ]
    return dict(inputs=images, data_samples=samples)


def losses_of(detector, data):
    data = detector.data_preprocessor(data, training=True)
    return detector.parse_losses(detector(**data, mode='loss'))


def test_one_step_and_one_prediction(any_detector):
    detector = any_detector
    optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-3)
    total, parts = losses_of(detector, batch([2, 1]))
    total.backward()
    missing = [n for n, p in detector.named_parameters() if p.grad is None]
    assert not missing
    assert all(v.isfinite().all() for v in parts.values())
    before = detector.backbone.stages[0].patch_embed.proj.weight.clone()
    optimizer.step()
    assert not torch.equal(
        before, detector.backbone.stages[0].patch_embed.proj.weight
    )
    detector.eval()
    with torch.no_grad():
        results = detector.test_step(batch([1, 1]))
    assert len(results) == 2
    for result in results:
        found = result.pred_instances
        if detector.with_mask:
            assert found.masks.shape[1:] == (SIDE, SIDE)
        assert found.bboxes.isfinite().all()


@pytest.mark.parametrize('counts', [[0, 0], [0, 2]])
def test_images_without_objects(any_detector, counts):
    detector = any_detector
    total, _ = losses_of(detector, batch(counts))
    assert total.isfinite()
    total.backward()
    grads = [p.grad for p in detector.parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in grads)


def raw_outputs(detector, images):
    """Class scores of fixed boxes, which have passed RoIAlign."""
    detector.eval()
    boxes = torch.tensor([[0, 4, 4, 40, 44], [1, 10, 2, 60, 50.0]])
    with torch.no_grad():
        maps = detector.extract_feat(images)
        return detector.roi_head._bbox_forward(maps, boxes)['cls_score']


def test_channels_last_images_give_the_same_detections(detector):
    images = torch.randn(2, 3, SIDE, SIDE)
    expected = raw_outputs(detector, images)
    got = raw_outputs(detector, images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_channels_last_weights_give_the_same_detections(detector):
    images = torch.randn(2, 3, SIDE, SIDE)
    expected = raw_outputs(detector, images)
    detector.to(memory_format=torch.channels_last)
    broken = raw_outputs(detector, images)
    assert (broken - expected).abs().max() > 1e-3, (
        'mmcv reads channels-last maps now: the guard can go'
    )
    keep_roi_align_contiguous(detector)
    got = raw_outputs(detector, images)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_batch_mates_do_not_change_a_detection(detector):
    detector.eval()
    first = batch([1])
    other = batch([1])
    with torch.no_grad():
        alone = detector.test_step(first)[0].pred_instances
        both = detector.test_step(
            dict(
                inputs=first['inputs'] + other['inputs'],
                data_samples=first['data_samples'] + other['data_samples'],
            )
        )[0].pred_instances
    torch.testing.assert_close(both.scores, alone.scores)
    torch.testing.assert_close(both.bboxes, alone.bboxes)
