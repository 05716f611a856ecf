_base_ = '../_base_/recipes/mask-rcnn_fpn_1x_coco.py'
url = 'https://github.com/whai362/PVT/releases/download/v2/pvt_small.pth'
pvt = dict(type='mmdet.PyramidVisionTransformer', num_layers=[3, 4, 6, 3])
init_cfg = dict(type='Pretrained', checkpoint=url)
model = dict(backbone=dict(_delete_=True, init_cfg=init_cfg, **pvt))
