# Small Mask R-CNN for training from scratch on CPUs: nano, narrow heads with
# batch normalisation, and few proposals.
_base_ = './mask-rcnn_fpn.py'
model = dict(
    backbone=dict(arch='nano', drop_path_rate=0.0),
    neck=dict(
        in_channels=[16, 32, 64, 128],
        out_channels=48,
        norm_cfg=dict(type='BN'),
    ),
    rpn_head=dict(in_channels=48, feat_channels=48),
    roi_head=dict(
        bbox_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=2), out_channels=48
        ),
        bbox_head=dict(in_channels=48, fc_out_channels=256, num_classes=10),
        mask_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=2), out_channels=48
        ),
        mask_head=dict(
            num_convs=2,
            in_channels=48,
            conv_out_channels=48,
            num_classes=10,
            norm_cfg=dict(type='BN'),
        ),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=300, max_per_img=100),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100)),
)
