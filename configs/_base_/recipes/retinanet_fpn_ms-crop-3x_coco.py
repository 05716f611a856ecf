# RetinaNet, COCO 3x in many sizes.
_base_ = [
    '../models/retinanet_fpn.py',
    '../datasets/coco_detection_ms.py',
    '../schedules/adamw_3x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(init_cfg=dict(type='Pretrained')))
