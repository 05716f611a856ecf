# Nuclei of one real microscopy image, from `tools/prepare_data.py nuclei`.
_base_ = './digits_instance.py'
data_root = 'data/nuclei/'
metainfo = dict(classes=('nucleus',))
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale_factor=1.5, keep_ratio=True),
    dict(
        type='RandomFlip',
        prob=[0.3, 0.3],
        direction=['horizontal', 'vertical'],
    ),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='Resize', scale_factor=1.5, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=(
            'img_id',
            'img_path',
            'ori_shape',
            'img_shape',
            'scale_factor',
        ),
    ),
]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=train_pipeline
    )
)
val_dataloader = dict(
    batch_size=1,
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=test_pipeline
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/val.json')
test_evaluator = val_evaluator
