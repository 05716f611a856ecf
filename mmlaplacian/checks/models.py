"""Checks of a model's config against the data and the batch size."""

from mmengine.config import Config

from ..errors import InputError
from .coco_files import quote_names

#: Config keys of parts whose num_classes must be that of the data.
HEADS = ('bbox_head', 'mask_head', 'decode_head', 'head', 'data_preprocessor')
#: Segmentation heads that normalise after pooling a map to these side lengths.
POOLING_HEADS = {
    'UPerHead': (1, 2, 3, 6),
    'PSPHead': (1, 2, 3, 6),
    'ASPPHead': (1,),
    'DepthwiseSeparableASPPHead': (1,),
}


def check_num_classes(model: dict, classes: list[str], key: str) -> None:
    """Raise unless every head has as many classes as the data.

    Args:
        model: Config of the model.
        classes: Class names of the dataset.
        key: Config key of the dataset, for messages.

    Raises:
        InputError: A head has another number of classes.
    """
    for name, value in model.items():
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                continue
            number = part.get('num_classes')
            if part.get('class_agnostic') or name not in HEADS:
                number = None
            if classes and number not in (None, len(classes)):
                raise InputError(
                    f'{name}.num_classes is {number}, but {key} has '
                    f'{len(classes)} classes ({quote_names(classes)}); the '
                    'two must agree'
                )
            check_num_classes(part, classes, key)


def check_batch_norm(config: Config) -> None:
    """Raise if batch normalisation would see one value per channel.

    Args:
        config: The config, after ``prepare_device``.

    Raises:
        InputError: A head pools to 1 x 1 and normalises over a batch of one
            image in each process.
    """
    if (config.get('train_dataloader') or {}).get('batch_size') != 1:
        return
    for name in ('decode_head', 'auxiliary_head'):
        heads = config.model.get(name) or []
        for head in heads if isinstance(heads, list) else [heads]:
            norm = (head.get('norm_cfg') or {}).get('type')
            sides = POOLING_HEADS.get(head.get('type'), ())
            if 1 in head.get('pool_scales', sides) and sides and norm == 'BN':
                raise InputError(
                    f'{name}: batch normalisation after pooling to 1 x 1 '
                    'needs more than one image in a step, but '
                    'train_dataloader.batch_size is 1. Set it to 2 or more '
                    'with --cfg-options, or train on several GPUs with SyncBN'
                )
