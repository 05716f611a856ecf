# Mask R-CNN, COCO 1x. No one has published ImageNet weights: see the
# message of tools/train.py for the ways to get a start.
_base_ = [
    '../models/mask-rcnn_fpn.py',
    '../datasets/coco_instance.py',
    '../schedules/adamw_1x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(init_cfg=dict(type='Pretrained')))
optim_wrapper = dict(optimizer=dict(lr=0.0002))
