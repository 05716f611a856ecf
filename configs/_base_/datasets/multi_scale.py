# Sizes and crops that DETR introduced, as Swin and PVTv2 train with for 3x:
# a shorter side of 480 to 800, and in half the images a crop before.
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
