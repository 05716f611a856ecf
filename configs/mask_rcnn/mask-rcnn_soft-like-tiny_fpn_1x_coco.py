_base_ = '../_base_/recipes/mask-rcnn_fpn_1x_coco.py'
init_cfg = dict(checkpoint='checkpoints/soft-like-tiny_in1k.pth')
attention = dict(share_qk=True, kernel='gaussian', whitening='row')
model = dict(backbone=dict(attention=attention, init_cfg=init_cfg))
