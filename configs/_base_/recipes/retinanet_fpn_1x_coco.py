# RetinaNet, COCO 1x.
_base_ = [
    '../models/retinanet_fpn.py',
    '../datasets/coco_detection.py',
    '../schedules/adamw_1x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(init_cfg=dict(type='Pretrained')))
optim_wrapper = dict(optimizer=dict(lr=0.0001))
