"""Weights, before they are loaded.

mmengine loads the tensors that fit and logs the others, so a wrong file
would train or test a random model. These checks make it an error.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from ..checkpoints.read import check_same_tensors, read_tensors
from ..errors import InputError


def check_checkpoint(
    model: nn.Module, path: str, prefix: str | None = None
) -> None:
    """Raise unless a file holds the weights of a model.

    Args:
        model: The built model.
        path: Checkpoint file, or a URL that mmengine can read.
        prefix: Compare only names that start with it, such as
            ``'backbone.'`` for fine-tuning on other classes. Default: None.

    Raises:
        InputError: The file is missing or unreadable, or names or shapes of
            its tensors differ from the model's.
    """
    expected = _select(model.state_dict(), prefix)
    found = _select(read_tensors(path), prefix)
    # Old batch norms have no counters, and mmengine accepts that.
    for name in expected:
        if name.endswith('num_batches_tracked'):
            found.setdefault(name, expected[name])
    check_same_tensors(path, expected, found, extra_allowed=prefix is not None)


def check_pretrained(config: Config, from_scratch: bool = False) -> None:
    """Check the files that ``init_cfg=dict(type='Pretrained')`` names.

    Args:
        config: The config. With ``from_scratch`` or ``config.load_from``,
            these entries are removed, since the weights come from elsewhere.
        from_scratch: Start from random weights. Default: False.

    Raises:
        InputError: A file is missing, or holds another model.
    """
    for key, module in _pretrained(config.model, 'model'):
        if from_scratch or config.get('load_from'):
            module.init_cfg = None
            continue
        init_cfg = module.init_cfg
        path = init_cfg.get('checkpoint')
        remote = path and '://' in path
        if not remote and not (path and Path(path).is_file()):
            raise InputError(_missing_weights(key, module))
        if module.get('type') == 'LaplacianFormer':
            with torch.device('meta'):
                model = MODELS.build({**module, 'init_cfg': None})
            found = read_tensors(path)
            if prefix := init_cfg.get('prefix'):
                prefix = prefix.rstrip('.') + '.'
                found = {
                    name[len(prefix) :]: tensor
                    for name, tensor in _select(found, prefix).items()
                }
            check_same_tensors(
                path, model.state_dict(), found, extra_allowed=True
            )


def _missing_weights(key: str, module: dict) -> str:
    """Message for pretrained weights that are missing."""
    path = module['init_cfg'].get('checkpoint') or ''
    ways = [
        f'use weights that you have: --cfg-options '
        f'{key}.init_cfg.checkpoint=FILE',
        'start from random weights: --from-scratch, which costs much '
        'accuracy in a 1x schedule',
    ]
    arch = module.get('arch', 'tiny')
    published = ''
    if module.get('type') == 'LaplacianFormer':
        published = ' No weights of LaplacianFormer have been published.'
        # Other attentions may have other tensors.
        if isinstance(arch, str) and not module.get('attention'):
            convert = 'tools/convert_checkpoint.py'
            config = f'imagenet/laplacianformer-{arch}_16xb64_in1k.py'
            if arch == 'nano':
                config = 'digits/laplacianformer-nano_digits-classes.py'
            ways = [
                f'pretrain with configs/{config}, then run {convert} '
                f'backbone CHECKPOINT {path or "OUT"}',
                f'start from PVT or PVTv2 weights: {convert} warm-start FILE '
                f'OUT --arch {arch}, then option (3) with OUT',
                *ways,
            ]
    numbered = (f'({i}) {way}' for i, way in enumerate(ways, 1))
    return (
        f'{key}.init_cfg.checkpoint: expected pretrained weights at '
        f'{Path(path).absolute()}, found none.{published} Options: '
        + '; '.join(numbered)
    )


def _pretrained(node, key: str) -> Iterator[tuple[str, dict]]:
    """Config dicts at and below ``node`` that ask for a pretrained file."""
    if isinstance(node, (list, tuple)):
        for i, child in enumerate(node):
            yield from _pretrained(child, f'{key}.{i}')
    if not isinstance(node, dict):
        return
    init_cfg = node.get('init_cfg')
    # mmdet's PVT takes a checkpoint without a type.
    if isinstance(init_cfg, dict) and (
        init_cfg.get('type') == 'Pretrained' or 'checkpoint' in init_cfg
    ):
        yield key, node
    for name, child in node.items():
        yield from _pretrained(child, f'{key}.{name}')


def _select(tensors: dict, prefix: str | None) -> dict:
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix or '')
    }
