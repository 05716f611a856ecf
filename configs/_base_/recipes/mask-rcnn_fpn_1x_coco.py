# Mask R-CNN, COCO 1x. No ImageNet weights have been published; tools/train.py
# prints the alternatives.
_base_ = [
    '../models/mask-rcnn_fpn.py',
    '../datasets/coco_instance.py',
    '../schedules/adamw_1x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(init_cfg=dict(type='Pretrained')))
optim_wrapper = dict(optimizer=dict(lr=0.0002))
