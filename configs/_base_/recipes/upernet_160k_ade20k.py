# UPerNet, ADE20K, 160k iterations.
_base_ = [
    '../models/upernet.py',
    '../datasets/ade20k.py',
    '../schedules/adamw_160k.py',
    '../seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(init_cfg=dict(type='Pretrained')),
)
train_dataloader = dict(batch_size=2)
default_hooks = dict(checkpoint=dict(interval=16000))
