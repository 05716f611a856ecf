# 300 epochs on ImageNet-1K for 16 GPUs x 64 images. This is DeiT's recipe,
# which the PVT family publishes, without repeated augmentation; the paper
# gives none. configs/imagenet/README.md shows how to average the weights.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.001,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=5,
        end=300,
        T_max=295,
        eta_min=0.00001,
        convert_to_iter_based=True,
    ),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=0.001, weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
auto_scale_lr = dict(enable=False, base_batch_size=1024)
