# Mask R-CNN on nuclei. Start it from that on digits with
# --cfg-options load_from=FILE.
_base_ = [
    '../models/mask-rcnn_fpn_nano.py',
    '../datasets/nuclei_instance.py',
    '../schedules/adamw_nuclei.py',
    '../det_runtime.py',
]
model = dict(
    roi_head=dict(bbox_head=dict(num_classes=1), mask_head=dict(num_classes=1))
)
optim_wrapper = dict(optimizer=dict(lr=0.001))
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(max_keep_ckpts=2),
    visualization=dict(score_thr=0.5),
)
randomness = dict(seed=0)
