# Classification of digits from scratch, to pretrain the digits detectors.
_base_ = [
    '../models/classifier_nano.py',
    '../datasets/digits_classes.py',
    '../schedules/adamw_digits.py',
    '../cls_runtime.py',
]
train_cfg = dict(max_epochs=16, val_interval=4)
param_scheduler = [
    # Without this warm-up, the loss stays at that of guessing for far longer.
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=4,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=4,
        end=16,
        T_max=12,
        eta_min_ratio=0.02,
        convert_to_iter_based=True,
    ),
]
optim_wrapper = dict(optimizer=dict(lr=0.0015))
auto_scale_lr = dict(base_batch_size=64)
default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(max_keep_ckpts=2)
)
randomness = dict(seed=0)
