# RetinaNet, COCO 3x with multi-scale training.
_base_ = [
    '../models/retinanet_fpn.py',
    '../datasets/coco_detection_ms.py',
    '../schedules/adamw_3x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(init_cfg=dict(type='Pretrained')))
