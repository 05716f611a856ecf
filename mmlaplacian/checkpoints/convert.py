"""Conversion of checkpoint files; output is complete or absent."""

import hashlib
import io
import json
import os
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..models import ARCHS, LaplacianFormer
from . import remap
from .read import check_same_tensors, read_checkpoint

#: Seed for the parameters that a warm start initialises.
SEED = 0


def extract_backbone(
    path: str, arch: str | None = None, ema: bool = False
) -> tuple[dict, dict[str, Tensor]]:
    """Extract the LaplacianFormer of a checkpoint.

    Args:
        path: Checkpoint of a classifier, detector or segmentor.
        arch: A name in ``ARCHS``; None detects it from the shapes.
            Default: None.
        ema: Use the averaged weights, see ``unwrap``. Default: False.

    Returns:
        The new checkpoint, and the tensors outside the backbone.

    Raises:
        InputError: The backbone is not exactly one of the sizes.
    """
    content = _read_any(path)
    try:
        state, _ = remap.unwrap(content, ema)
        state, dropped = remap.backbone_state(state)
    except ValueError as error:
        raise InputError(f'{path} {error}') from error
    shapes = {name: tensor.shape for name, tensor in state.items()}
    for candidate in [arch] if arch else ARCHS:
        expected = _empty(candidate)
        if {n: t.shape for n, t in expected.items()} == shapes:
            meta = dict(arch=candidate, source=Path(path).name, ema=ema)
            return dict(meta=meta, state_dict=remap.compact(state)), dropped
    if arch:
        check_same_tensors(
            path,
            expected,
            state,
            extra_allowed=False,
            model=f'LaplacianFormer {arch} with its default attention',
            advice='Without --arch the size is detected from the shapes',
        )
    raise InputError(
        f'{path}: its backbone has the shapes of none of {list(ARCHS)} with '
        'their default attention; --arch SIZE shows what differs'
    )


def warm_start(
    path: str, arch: str, trusted: bool = False
) -> tuple[dict, remap.WarmStart]:
    """Create a LaplacianFormer that starts from PVT or PVTv2 weights.

    Args:
        path: Checkpoint with the weights of a PVT or PVTv2.
        arch: A name in ``ARCHS``.
        trusted: Allow code in the file to run. Default: False.

    Returns:
        The complete new checkpoint, in which parameters without a source are
        initialised with the seed ``SEED``, and the report.

    Raises:
        InputError: The file holds another model, or code and is not trusted.
    """
    content = _read_any(path, trusted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        ours = LaplacianFormer(arch).state_dict()
    try:
        theirs, _ = remap.unwrap(content)
        report = remap.warm_start(ours, theirs)
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
    return dict(meta=meta, state_dict=remap.compact(report.state)), report


def publish(
    path: str, out: str, safetensors: bool = False, force: bool = False
) -> tuple[list[Path], list[str]]:
    """Write the weights of a checkpoint for publication.

    The new file holds the weights under ``state_dict`` and the plain data of
    ``meta``: classes, config text, epoch. It loads with
    ``torch.load(weights_only=True)``.

    Args:
        path: Checkpoint.
        out: Name of the new file; ``NAME.pth`` becomes
            ``NAME-xxxxxxxx.pth``, with the first 8 digits of its SHA-256.
        safetensors: Write a second file, ``NAME-xxxxxxxx.safetensors``, with
            ``meta`` as JSON in its metadata. Default: False.
        force: Overwrite existing files. Default: False.

    Returns:
        The files, and the parts of the checkpoint that they omit.

    Raises:
        InputError: The checkpoint has no weights, a file exists, or
            safetensors is not installed.
    """
    if not Path(out).name:
        raise InputError(f'OUT: expected the name of a file, got {out!r}')
    if safetensors:
        _need_safetensors('--safetensors')
    content = _read_any(path)
    try:
        state, keys = remap.unwrap(content)
    except ValueError as error:
        raise InputError(f'{path} {error}') from error
    state = remap.compact(state)
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

        # One entry only: the order of several would make the hash random.
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
    """Raise InputError if a file would be overwritten."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f'{path}: expected the name of a file, got a folder')
    if path.exists() and not force:
        raise InputError(
            f'{path} exists already; pass --force to overwrite it'
        )


def write_checkpoint(content: dict, path: str, force: bool = False) -> None:
    """Save a checkpoint, and leave no partial file behind on failure.

    Args:
        content: Content for ``torch.save``.
        path: The file; missing folders are created.
        force: Overwrite an existing file. Default: False.

    Raises:
        InputError: The file exists.
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
    """Entries that unpickle without code, and the keys of the others."""
    kept, lost = {}, []
    for key, value in meta.items():
        try:
            kept[str(key)] = _plain(value)
        except TypeError:
            lost.append(str(key))
    return kept, lost


def _plain(value):
    if isinstance(value, dict):
        # safetensors stores them as JSON, which has these keys only.
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
