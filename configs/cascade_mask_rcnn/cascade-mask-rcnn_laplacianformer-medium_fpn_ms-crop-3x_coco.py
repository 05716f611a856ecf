_base_ = '../_base_/recipes/cascade-mask-rcnn_fpn_ms-crop-3x_coco.py'
init_cfg = dict(checkpoint='checkpoints/laplacianformer-medium_in1k.pth')
model = dict(
    backbone=dict(arch='medium', drop_path_rate=0.2, init_cfg=init_cfg)
)
