"""Checkpoints out of checkpoints; files are complete or not there."""

import hashlib
import io
import json
import os
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..models import ARCHS, LaplacianFormer, checkpoint
from .weights import compare, read_checkpoint

#: Of what a warm start leaves at its initialisation.
SEED = 0


def extract_backbone(
    path: str, arch: str | None = None, ema: bool = False
) -> tuple[dict, dict[str, Tensor]]:
    """The LaplacianFormer in a checkpoint.

    Args:
        path: Checkpoint of a classifier, detector or segmentor.
        arch: A name in ``ARCHS``; None finds it from the shapes.
            Default: None.
        ema: Take the averaged weights, see ``unwrap``. Default: False.

    Returns:
        The new checkpoint, and the tensors that are not of the backbone.

    Raises:
        InputError: The file does not hold all weights of one of the sizes,
            and no other.
    """
    content = _read_any(path)
    try:
        state, _ = checkpoint.unwrap(content, ema)
        state, dropped = checkpoint.backbone_state(state)
    except ValueError as error:
        raise InputError(f'{path} {error}') from error
    shapes = {name: tensor.shape for name, tensor in state.items()}
    for candidate in [arch] if arch else ARCHS:
        expected = _empty(candidate)
        if {n: t.shape for n, t in expected.items()} == shapes:
            meta = dict(arch=candidate, source=Path(path).name, ema=ema)
            return dict(
                meta=meta, state_dict=checkpoint.compact(state)
            ), dropped
    if arch:
        compare(
            path,
            expected,
            state,
            extra_allowed=False,
            model=f'LaplacianFormer {arch} with its default attention',
            advice='Without --arch the size is found from the shapes',
        )
    raise InputError(
        f'{path}: its backbone has the shapes of none of {list(ARCHS)} with '
        'their default attention; --arch SIZE shows what differs'
    )


def warm_start(
    path: str, arch: str, trusted: bool = False
) -> tuple[dict, checkpoint.WarmStart]:
    """A LaplacianFormer that starts from PVT or PVTv2 weights.

    Args:
        path: Checkpoint with the weights of a PVT or PVTv2.
        arch: A name in ``ARCHS``.
        trusted: Whether code in the file may run. Default: False.

    Returns:
        The new checkpoint, complete: what does not map is initialised with
        the seed ``SEED``. And the report.

    Raises:
        InputError: The file holds something else, or what only a trusted
            one may.
    """
    content = _read_any(path, trusted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        ours = LaplacianFormer(arch).state_dict()
    try:
        theirs, _ = checkpoint.unwrap(content)
        report = checkpoint.warm_start(ours, theirs)
    except ValueError as error:
        raise InputError(f'{path} {error}') from error
    meta = dict(
        arch=arch,
        source=Path(path).name,
        layout=report.layout,
        share=report.share,
        seed=SEED,
        initialised=list(report.left),
    )
    return dict(meta=meta, state_dict=checkpoint.compact(report.state)), report


def publish(
    path: str, out: str, safetensors: bool = False, force: bool = False
) -> tuple[list[Path], list[str]]:
    """Write the weights of a checkpoint for others.

    Kept are the weights under ``state_dict`` and, of ``meta``, plain data:
    classes, config text, epoch. The result loads with
    ``torch.load(weights_only=True)``.

    Args:
        path: Checkpoint.
        out: Name of the new file; ``NAME.pth`` becomes
            ``NAME-xxxxxxxx.pth``, with the first 8 digits of its SHA-256.
        safetensors: Write a second file, ``NAME-xxxxxxxx.safetensors``, with
            ``meta`` as JSON in its metadata. Default: False.
        force: Overwrite. Default: False.

    Returns:
        The files, and what of the checkpoint is not in them.

    Raises:
        InputError: The checkpoint has no weights, a file is there, or
            safetensors is not installed.
    """
    if not Path(out).name:
        raise InputError(f'OUT: expected the name of a file, got {out!r}')
    if safetensors:
        _need_safetensors('--safetensors')
    content = _read_any(path)
    try:
        state, keys = checkpoint.unwrap(content)
    except ValueError as error:
        raise InputError(f'{path} {error}') from error
    state = checkpoint.compact(state)
    meta, dropped = {}, []
    if keys:
        dropped = [key for key in content if key not in (*keys, 'meta')]
        meta = content.get('meta') or {}
    if isinstance(meta, dict):
        meta, lost = _plain_entries(meta)
        dropped += [f'meta.{key}' for key in lost]
    else:
        meta, dropped = {}, [*dropped, 'meta']
    stem = Path(out).with_suffix('') if out.endswith('.pth') else Path(out)
    data = {'.pth': _serialise(dict(meta=meta, state_dict=state))}
    if safetensors:
        from safetensors.torch import save

        # Of several entries the order, and so the hash, would be random.
        data['.safetensors'] = save(state, dict(meta=json.dumps(meta)))
    files = {}
    for suffix, content in data.items():
        digits = hashlib.sha256(content).hexdigest()[:8]
        files[stem.with_name(f'{stem.name}-{digits}{suffix}')] = content
    for file in files:
        check_output(file, force)
    for file, content in files.items():
        _write(file, content)
    return list(files), dropped


def check_output(path: str | Path, force: bool) -> None:
    """Raise InputError where a file would be overwritten."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f'{path}: expected the name of a file, got a folder')
    if path.exists() and not force:
        raise InputError(f'{path} is there already; --force overwrites it')


def write_checkpoint(content: dict, path: str, force: bool = False) -> None:
    """Save a checkpoint; nothing is left behind where that fails.

    Args:
        content: What ``torch.save`` takes.
        path: The file; its folder is made.
        force: Overwrite. Default: False.

    Raises:
        InputError: The file is there.
    """
    check_output(path, force)
    _write(Path(path), _serialise(content))


def _read_any(path: str, trusted: bool = True):
    if not path.endswith('.safetensors'):
        return read_checkpoint(path, trusted)
    if '://' in path:
        raise InputError(
            f'{path}: expected a file, got an address; download it first'
        )
    _need_safetensors(path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f'checkpoint: {path}: {error}') from error


def _need_safetensors(what: str) -> None:
    if find_spec('safetensors') is None:
        raise InputError(
            f'{what} needs the package safetensors, which is not installed: '
            'pip install safetensors'
        )


def _empty(arch: str) -> dict[str, Tensor]:
    with torch.device('meta'):
        return LaplacianFormer(arch).state_dict()


def _plain_entries(meta: dict) -> tuple[dict, list[str]]:
    """The entries that need no code to unpickle, and the other keys."""
    kept, lost = {}, []
    for key, value in meta.items():
        try:
            kept[str(key)] = _plain(value)
        except TypeError:
            lost.append(str(key))
    return kept, lost


def _plain(value):
    if isinstance(value, dict):
        # Those of JSON, in which safetensors keeps them.
        if not all(isinstance(key, (str, int, float)) for key in value):
            raise TypeError(type(value))
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if hasattr(value, 'tolist'):
        return value.tolist()
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TypeError(type(value))


def _serialise(content: dict) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'{path.name}.part')
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
