# Semantic FPN on the digits; epochs, as for the detectors.
_base_ = [
    '../models/semantic-fpn_nano.py',
    '../datasets/digits_semantic.py',
    '../schedules/adamw_digits.py',
    '../seg_runtime.py',
]
model = dict(data_preprocessor=dict(size=(192, 192)))
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval=1, max_keep_ckpts=2),
)
log_processor = dict(by_epoch=True)
randomness = dict(seed=0)
