# Small classifier for ten classes, without mixup and CutMix.
_base_ = './classifier.py'
model = dict(
    data_preprocessor=dict(num_classes=10),
    backbone=dict(arch='nano', drop_path_rate=0.0),
    head=dict(num_classes=10, in_channels=128, cal_acc=True),
)
