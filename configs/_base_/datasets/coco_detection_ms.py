# COCO 2017 with multi-scale training, and tests as in coco_detection.py.
_base_ = ['./coco_detection.py', './multi_scale.py']
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomFlip', prob=0.5),
    {{_base_.multi_scale}},
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
