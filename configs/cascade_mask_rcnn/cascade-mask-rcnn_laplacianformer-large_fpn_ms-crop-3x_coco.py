_base_ = '../_base_/recipes/cascade-mask-rcnn_fpn_ms-crop-3x_coco.py'
init_cfg = dict(checkpoint='checkpoints/laplacianformer-large_in1k.pth')
model = dict(
    backbone=dict(arch='large', drop_path_rate=0.3, init_cfg=init_cfg)
)
