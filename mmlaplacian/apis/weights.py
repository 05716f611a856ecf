"""Checks of weights before they are loaded.

mmengine loads what fits and logs the rest, so a wrong file trains or tests a
random model. Here it is an error.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor, nn

from ..errors import InputError


def check_checkpoint(
    model: nn.Module, path: str, prefix: str | None = None
) -> None:
    """Raise unless a file holds the weights of a model.

    Args:
        model: The built model.
        path: Checkpoint file, or an address that mmengine can read.
        prefix: Compare only names that start with it, such as
            ``'backbone.'``: what fine-tuning on other classes must share.

    Raises:
        InputError: The file is missing or unreadable, or names or shapes of
            its tensors differ from the model's.
    """
    expected = _select(model.state_dict(), prefix)
    found = _select(_read(path), prefix)
    # As in mmengine: counters of old batch norms may be missing.
    optional = [n for n in expected if n.endswith('num_batches_tracked')]
    for name in optional:
        found.setdefault(name, expected[name])
    _compare(path, expected, found, extra_allowed=prefix is not None)


def check_pretrained(config: Config, from_scratch: bool = False) -> None:
    """Look at the files that ``init_cfg=dict(type='Pretrained')`` names.

    Args:
        config: The config. With ``from_scratch`` or ``config.load_from``,
            whose weights come from elsewhere, those entries are taken out.
        from_scratch: The user wants random weights.

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
            raise InputError(
                f'{key}.init_cfg.checkpoint: expected pretrained weights at '
                f'{Path(path or "").absolute()}, found none. Nobody has '
                'published weights of LaplacianFormer. Ways out: (1) weights '
                'that you trained, with --cfg-options '
                f'{key}.init_cfg.checkpoint=FILE; (2) --from-scratch, random '
                'weights, which costs much accuracy in a 1x schedule'
            )
        if module.get('type') == 'LaplacianFormer':
            with torch.device('meta'):
                model = MODELS.build({**module, 'init_cfg': None})
            found = _read(path)
            if prefix := init_cfg.get('prefix'):
                prefix = prefix.rstrip('.') + '.'
                found = {
                    name[len(prefix) :]: tensor
                    for name, tensor in _select(found, prefix).items()
                }
            _compare(path, model.state_dict(), found, extra_allowed=True)


def _pretrained(node, key: str) -> Iterator[tuple[str, dict]]:
    """Every config dict below ``node`` that asks for a pretrained file."""
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


def _read(path: str) -> dict[str, Tensor]:
    if '://' not in path and not Path(path).is_file():
        raise InputError(
            'checkpoint: expected a file, found none at '
            f'{Path(path).absolute()}'
        )
    try:
        content = CheckpointLoader.load_checkpoint(path, map_location='cpu')
    except Exception as error:
        raise InputError(
            f'checkpoint: {path} is not a PyTorch checkpoint: {error}'
        ) from error
    if isinstance(content, dict) and isinstance(content.get('model'), dict):
        raise InputError(
            f'checkpoint: {path} holds its weights under "model", where '
            'mmengine does not look; save them under "state_dict"'
        )
    if isinstance(content, dict):
        content = content.get('state_dict', content)
    tensors = {}
    if isinstance(content, dict):
        tensors = {
            str(name).removeprefix('module.'): tensor
            for name, tensor in content.items()
            if isinstance(tensor, Tensor)
        }
    if not tensors:
        raise InputError(f'checkpoint: {path} holds no tensors')
    return tensors


def _select(tensors: dict, prefix: str | None) -> dict:
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix or '')
    }


def _compare(
    path: str, expected: dict, found: dict, extra_allowed: bool
) -> None:
    troubles = [
        f'{name}: missing, expected {tuple(tensor.shape)}'
        for name, tensor in expected.items()
        if name not in found
    ]
    troubles += [
        f'{name}: expected {tuple(tensor.shape)}, '
        f'got {tuple(found[name].shape)}'
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if not extra_allowed:
        troubles += [
            f'{name}: not in the model'
            for name in found
            if name not in expected
        ]
    if troubles:
        shown = '\n  '.join(troubles[:5])
        more = len(troubles) - 5
        raise InputError(
            f"checkpoint: {path} does not hold the weights of this config's "
            f'model: {len(troubles)} of {len(expected)} tensors differ:\n  '
            f'{shown}\n  '
            + (f'... and {more} more\n' if more > 0 else '')
            + 'Use the config that the checkpoint was trained with (its '
            'work directory holds a copy)'
        )
