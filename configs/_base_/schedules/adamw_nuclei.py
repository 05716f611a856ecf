# 16 epochs, three minutes on two cores.
_base_ = './adamw_digits.py'
train_cfg = dict(max_epochs=16, val_interval=4)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=16,
        T_max=16,
        eta_min_ratio=0.02,
        convert_to_iter_based=True,
    ),
]
