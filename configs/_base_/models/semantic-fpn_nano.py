# Semantic FPN in small.
_base_ = './semantic-fpn.py'
model = dict(
    backbone=dict(arch='nano', drop_path_rate=0.0),
    neck=dict(in_channels=[16, 32, 64, 128], out_channels=64),
    decode_head=dict(
        in_channels=[64, 64, 64, 64],
        channels=64,
        dropout_ratio=0.0,
        num_classes=11,
    ),
)
