# 36 epochs with weight decay 0.05, as PVTv2 and Swin publish them.
_base_ = './adamw_1x.py'
train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(
        type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500
    ),
    dict(
        type='MultiStepLR',
        begin=0,
        end=36,
        by_epoch=True,
        milestones=[27, 33],
        gamma=0.1,
    ),
]
optim_wrapper = dict(optimizer=dict(lr=0.0001, weight_decay=0.05))
