"""Reading of checkpoint files and comparison of their tensors."""

from pathlib import Path
from pickle import UnpicklingError

import torch
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor
from torch.hub import load_state_dict_from_url

from ..errors import InputError
from .remap import unwrap

#: Differing tensors that a message lists.
MAX_LISTED = 5


def read_checkpoint(path: str, trusted: bool = True):
    """Read a checkpoint file onto the CPU.

    Args:
        path: The file, or a URL that mmengine can read (http or https if it
            is not trusted).
        trusted: Allow code in the file to run, which the pickles of training
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
                f'checkpoint: {path}: expected tensors and plain data only. '
                'The file contains other objects, as complete training '
                'checkpoints do, or is not a checkpoint. Reading it can run '
                'code; pass --trust if you trust its source '
                f'({type(error).__name__})'
            ) from error
        raise InputError(
            f'checkpoint: {path} is not a PyTorch checkpoint: {error}'
        ) from error


def read_tensors(path: str) -> dict[str, Tensor]:
    """Read the tensors that mmengine would load from a checkpoint.

    Args:
        path: The file, or a URL that mmengine can read.

    Returns:
        Tensors by name, without the prefix ``module.``.

    Raises:
        InputError: The file cannot be read, holds no tensors, or holds them
            under a key that mmengine does not read.
    """
    try:
        tensors, keys = unwrap(read_checkpoint(path))
    except ValueError as error:
        raise InputError(f'checkpoint: {path} {error}') from error
    if keys not in ((), ('state_dict',)):
        raise InputError(
            f'checkpoint: {path} holds its weights under '
            f'"{".".join(keys)}", where mmengine does not look. Use '
            f'tools/convert_checkpoint.py publish {path} OUT to write the '
            'whole model where it looks, or backbone instead of publish for '
            'the backbone alone'
        )
    return {n.removeprefix('module.'): t for n, t in tensors.items()}


def check_same_tensors(
    path: str,
    expected: dict,
    found: dict,
    extra_allowed: bool,
    model: str = "this config's model",
    advice: str = 'Use the config that the checkpoint was trained with (its '
    'work directory holds a copy)',
) -> None:
    """Raise unless two state dicts have the same names and shapes.

    Args:
        path: File that ``found`` comes from.
        expected: State dict of the model.
        found: State dict of the file.
        extra_allowed: The file may hold further tensors.
        model, advice: Words for the message.

    Raises:
        InputError: Names or shapes differ.
    """
    differences = [
        f'{name}: missing, expected {tuple(tensor.shape)}'
        for name, tensor in expected.items()
        if name not in found
    ]
    differences += [
        f'{name}: expected {tuple(tensor.shape)}, '
        f'got {tuple(found[name].shape)}'
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if not extra_allowed:
        differences += [
            f'{name}: not in the model'
            for name in found
            if name not in expected
        ]
    if differences:
        shown = '\n  '.join(differences[:MAX_LISTED])
        more = len(differences) - MAX_LISTED
        raise InputError(
            f'checkpoint: {path} does not hold the weights of {model}: '
            f'{len(differences)} of {len(expected)} tensors differ:\n  '
            f'{shown}\n  '
            + (f'... and {more} more\n' if more > 0 else '')
            + advice
        )
