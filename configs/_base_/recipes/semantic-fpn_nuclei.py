# Semantic FPN on nuclei.
_base_ = [
    '../models/semantic-fpn_nano.py',
    '../datasets/nuclei_semantic.py',
    '../schedules/adamw_nuclei.py',
    '../seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    decode_head=dict(num_classes=2),
)
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval=1, max_keep_ckpts=2),
)
log_processor = dict(by_epoch=True)
randomness = dict(seed=0)
