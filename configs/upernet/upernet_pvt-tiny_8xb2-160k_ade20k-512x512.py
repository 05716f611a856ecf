_base_ = '../_base_/recipes/upernet_160k_ade20k.py'
url = 'https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth'
pvt = dict(type='mmdet.PyramidVisionTransformer', num_layers=[2, 2, 2, 2])
init_cfg = dict(type='Pretrained', checkpoint=url)
model = dict(backbone=dict(_delete_=True, init_cfg=init_cfg, **pvt))
