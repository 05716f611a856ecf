# Mask R-CNN on digits, from scratch.
_base_ = [
    '../models/mask-rcnn_fpn_nano.py',
    '../datasets/digits_instance.py',
    '../schedules/adamw_digits.py',
    '../det_runtime.py',
]
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(max_keep_ckpts=2),
    visualization=dict(score_thr=0.5),
)
randomness = dict(seed=0)
