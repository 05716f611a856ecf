# Semantic FPN on the digits; epochs, as for the detectors. Start it from Mask
# R-CNN, with --cfg-options load_from=FILE: from random weights its 1,250
# iterations end before it has learnt anything.
_base_ = [
    '../models/semantic-fpn_nano.py',
    '../datasets/digits_semantic.py',
    '../schedules/adamw_digits.py',
    '../seg_runtime.py',
]
# Nine pixels in ten are background.
model = dict(
    data_preprocessor=dict(size=(192, 192)),
    decode_head=dict(loss_decode=dict(class_weight=[0.2] + 10 * [1.0])),
)
optim_wrapper = dict(optimizer=dict(lr=0.001))
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval=1, max_keep_ckpts=2),
)
log_processor = dict(by_epoch=True)
randomness = dict(seed=0)
