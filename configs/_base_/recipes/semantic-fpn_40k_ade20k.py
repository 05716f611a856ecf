# Semantic FPN, ADE20K, 40k iterations. As in PVT, the sides of test images are
# multiples of 32.
_base_ = [
    '../models/semantic-fpn.py',
    '../datasets/ade20k.py',
    '../schedules/adamw_40k.py',
    '../seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(init_cfg=dict(type='Pretrained')),
)
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='ResizeToMultiple', size_divisor=32),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(batch_size=4)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
