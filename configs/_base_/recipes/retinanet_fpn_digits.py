# Small RetinaNet for digits: nano, narrow heads, and anchors of half the usual
# size for small objects.
_base_ = [
    '../models/retinanet_fpn.py',
    '../datasets/digits_detection.py',
    '../schedules/adamw_digits.py',
    '../det_runtime.py',
]
model = dict(
    backbone=dict(arch='nano', drop_path_rate=0.0),
    neck=dict(
        in_channels=[16, 32, 64, 128],
        out_channels=64,
        start_level=0,
        add_extra_convs=False,
        norm_cfg=dict(type='BN'),
    ),
    bbox_head=dict(
        num_classes=10,
        in_channels=64,
        feat_channels=64,
        stacked_convs=2,
        norm_cfg=dict(type='BN'),
        anchor_generator=dict(scales_per_octave=2, strides=[4, 8, 16, 32, 64]),
    ),
    # Digits hardly overlap, so each place has one class.
    test_cfg=dict(nms=dict(class_agnostic=True)),
)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(max_keep_ckpts=2),
    visualization=dict(score_thr=0.5),
)
randomness = dict(seed=0)
