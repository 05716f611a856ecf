_base_ = '../_base_/recipes/upernet_160k_ade20k.py'
init_cfg = dict(checkpoint='checkpoints/laplacianformer-huge_in1k.pth')
model = dict(backbone=dict(arch='huge', drop_path_rate=0.3, init_cfg=init_cfg))
