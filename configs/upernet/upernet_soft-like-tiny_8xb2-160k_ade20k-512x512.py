_base_ = '../_base_/recipes/upernet_160k_ade20k.py'
init_cfg = dict(checkpoint='checkpoints/soft-like-tiny_in1k.pth')
attention = dict(share_qk=True, kernel='gaussian', whitening='row')
model = dict(backbone=dict(attention=attention, init_cfg=init_cfg))
