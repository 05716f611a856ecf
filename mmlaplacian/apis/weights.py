"""Checks of weights before they are loaded.

mmengine loads what fits and logs the rest, so a wrong file trains or tests a
random model. Here it is an error.
"""

from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor, nn
from torch.hub import load_state_dict_from_url

from ..errors import InputError
from ..models.checkpoint import unwrap


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
    compare(path, expected, found, extra_allowed=prefix is not None)


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
            raise InputError(_missing(key, module))
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
            compare(path, model.state_dict(), found, extra_allowed=True)


def _missing(key: str, module: dict) -> str:
    """What to do about pretrained weights that are not there."""
    path = module['init_cfg'].get('checkpoint') or ''
    ways = [
        f'--cfg-options {key}.init_cfg.checkpoint=FILE, weights that you have',
        '--from-scratch, random weights, which costs much accuracy in a 1x '
        'schedule',
    ]
    arch = module.get('arch', 'tiny')
    published = ''
    if module.get('type') == 'LaplacianFormer':
        published = ' Nobody has published weights of LaplacianFormer.'
        # Other attentions may have other tensors.
        if isinstance(arch, str) and not module.get('attention'):
            convert = 'tools/convert_checkpoint.py'
            config = f'imagenet/laplacianformer-{arch}_16xb64_in1k.py'
            if arch == 'nano':
                config = 'digits/laplacianformer-nano_digits-classes.py'
            ways = [
                f'pretrain with configs/{config}, then {convert} backbone '
                f'CHECKPOINT {path or "OUT"}',
                f'start from PVT or PVTv2 weights: {convert} warm-start FILE '
                f'OUT --arch {arch}, and way (3) with OUT',
                *ways,
            ]
    numbered = (f'({i}) {way}' for i, way in enumerate(ways, 1))
    return (
        f'{key}.init_cfg.checkpoint: expected pretrained weights at '
        f'{Path(path).absolute()}, found none.{published} Ways out: '
        + '; '.join(numbered)
    )


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


def read_checkpoint(path: str, trusted: bool = True):
    """What a checkpoint file holds, on the CPU.

    Args:
        path: The file, or an address that mmengine can read (http or https
            where it is not trusted).
        trusted: Whether code in the file may run, as pickles of training
            programs need. Default: True.

    Returns:
        The unpickled content.

    Raises:
        InputError: The file is missing or cannot be read.
    """
    if '://' not in path and not Path(path).is_file():
        raise InputError(
            'checkpoint: expected a file, found none at '
            f'{Path(path).absolute()}'
        )
    try:
        if not trusted:
            options = dict(map_location='cpu', weights_only=True)
            if '://' in path:
                return load_state_dict_from_url(path, **options)
            return torch.load(path, **options)
        return CheckpointLoader.load_checkpoint(
            path, map_location='cpu', logger='silent'
        )
    except Exception as error:
        if not trusted and isinstance(error, UnpicklingError):
            raise InputError(
                f'checkpoint: {path}: expected tensors and plain data alone, '
                'got more, or no checkpoint. A whole checkpoint of a training '
                'is such a file; where you trust its source, --trust reads '
                f'it, and runs what code is in it ({type(error).__name__})'
            ) from error
        raise InputError(
            f'checkpoint: {path} is not a PyTorch checkpoint: {error}'
        ) from error


def _read(path: str) -> dict[str, Tensor]:
    """The tensors that mmengine would load."""
    try:
        tensors, keys = unwrap(read_checkpoint(path))
    except ValueError as error:
        raise InputError(f'checkpoint: {path} {error}') from error
    if keys not in ((), ('state_dict',)):
        raise InputError(
            f'checkpoint: {path} holds its weights under '
            f'"{".".join(keys)}", where mmengine does not look. '
            f'tools/convert_checkpoint.py publish {path} OUT writes them '
            'where it does, backbone in place of publish the backbone alone'
        )
    return {n.removeprefix('module.'): t for n, t in tensors.items()}


def _select(tensors: dict, prefix: str | None) -> dict:
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix or '')
    }


def compare(
    path: str,
    expected: dict,
    found: dict,
    extra_allowed: bool,
    model: str = "this config's model",
    advice: str = 'Use the config that the checkpoint was trained with (its '
    'work directory holds a copy)',
) -> None:
    """Raise InputError unless names and shapes of tensors are the same.

    Args:
        path: Where ``found`` was read.
        expected: The model's state dict.
        found: The file's.
        extra_allowed: The file may hold more.
        model, advice: Words for the message.
    """
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
            f'checkpoint: {path} does not hold the weights of {model}: '
            f'{len(troubles)} of {len(expected)} tensors differ:\n  '
            f'{shown}\n  '
            + (f'... and {more} more\n' if more > 0 else '')
            + advice
        )
