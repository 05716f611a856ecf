_base_ = '../_base_/recipes/mask-rcnn_fpn_ms-crop-3x_coco.py'
init_cfg = dict(checkpoint='checkpoints/laplacianformer-tiny_in1k.pth')
model = dict(backbone=dict(arch='tiny', drop_path_rate=0.1, init_cfg=init_cfg))
