# Semantic FPN on digits, in epochs like the detectors. Start it from
# RetinaNet, which has the same FPN, with --cfg-options load_from=FILE.
# Classifying every pixel of a stroke takes far longer to learn than detection
# does, and longer still from random weights.
_base_ = [
    '../models/semantic-fpn_nano.py',
    '../datasets/digits_semantic.py',
    '../schedules/adamw_digits.py',
    '../seg_runtime.py',
]
# All classes have the same weight. With a smaller weight for the background,
# which covers nine pixels in ten, the predicted strokes were too thick.
model = dict(
    data_preprocessor=dict(size=(192, 192)),
    neck=dict(out_channels=64),
    decode_head=dict(
        in_channels=[64, 64, 64, 64],
        channels=128,
    ),
    auxiliary_head=dict(
        type='FCNHead',
        in_channels=64,
        in_index=2,
        channels=64,
        num_convs=1,
        concat_input=False,
        num_classes=11,
        norm_cfg=dict(type='BN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', loss_weight=0.4),
    ),
)
train_cfg = dict(max_epochs=40, val_interval=4)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=40,
        T_max=40,
        eta_min_ratio=0.02,
        convert_to_iter_based=True,
    ),
]
optim_wrapper = dict(optimizer=dict(lr=0.001))
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval=1, max_keep_ckpts=2),
)
log_processor = dict(by_epoch=True)
randomness = dict(seed=0)
