# Swin's published recipe for UPerNet on ADE20K, 8 GPUs x 2 crops.
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=160000, val_interval=16000
)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(
        type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500
    ),
    dict(
        type='PolyLR',
        power=1.0,
        begin=1500,
        end=160000,
        eta_min=0.0,
        by_epoch=False,
    ),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=0.00006, weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
