# Images of one real digit, from `tools/prepare_data.py digits-classes`.
metainfo = dict(classes=('0', '1', '2', '3', '4', '5', '6', '7', '8', '9'))
pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
# Decoding is a small part of an iteration, so workers would only compete for
# the cores of a small machine.
train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root='data/digits-classes',
        data_prefix='train',
        metainfo=metainfo,
        pipeline=pipeline,
    ),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset',
        data_root='data/digits-classes',
        data_prefix='val',
        metainfo=metainfo,
        pipeline=pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator
