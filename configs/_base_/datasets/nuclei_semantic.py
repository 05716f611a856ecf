# Semantic maps of the nuclei.
_base_ = './digits_semantic.py'
data_root = 'data/nuclei/'
metainfo = dict(
    classes=('background', 'nucleus'), palette=[[0, 0, 0], [0, 200, 120]]
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        type='RandomFlip',
        prob=[0.3, 0.3],
        direction=['horizontal', 'vertical'],
    ),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=train_pipeline
    )
)
val_dataloader = dict(
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=test_pipeline
    )
)
test_dataloader = val_dataloader
