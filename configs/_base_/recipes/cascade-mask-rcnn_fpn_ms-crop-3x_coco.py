# Cascade Mask R-CNN, COCO 3x with multi-scale training.
_base_ = [
    '../models/cascade-mask-rcnn_fpn.py',
    '../datasets/coco_instance_ms.py',
    '../schedules/adamw_3x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(init_cfg=dict(type='Pretrained')))
