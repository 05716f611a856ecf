# ImageNet-1K, 300 epochs, from random weights. The COCO and ADE20K configs
# start from the result.
_base_ = [
    '../models/classifier.py',
    '../datasets/imagenet.py',
    '../schedules/adamw_300e.py',
    '../cls_runtime.py',
]
model = dict(
    train_cfg=dict(
        augments=[
            dict(type='Mixup', alpha=0.8),
            dict(type='CutMix', alpha=1.0),
        ]
    )
)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3, save_best='auto'))
