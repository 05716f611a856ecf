# Multi-scale training of DETR, which Swin and PVTv2 use for 3x schedules: the
# shorter side is 480 to 800, and half of the images are cropped first.
multi_scale = dict(
    type='RandomChoice',
    transforms=[
        [
            dict(
                type='RandomChoiceResize',
                scales=[(1333, side) for side in range(480, 801, 32)],
                keep_ratio=True,
            ),
        ],
        [
            dict(
                type='RandomChoiceResize',
                scales=[(1333, side) for side in (400, 500, 600)],
                keep_ratio=True,
            ),
            dict(
                type='RandomCrop',
                crop_type='absolute_range',
                crop_size=(384, 600),
                allow_negative_crop=True,
            ),
            dict(
                type='RandomChoiceResize',
                scales=[(1333, side) for side in range(480, 801, 32)],
                keep_ratio=True,
            ),
        ],
    ],
)
