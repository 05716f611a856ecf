"""Parity rule, dense forms, commands and metafiles for the tests."""

import os
import subprocess
import sys

import torch
import yaml

#: Smallest error that counts, in units of the dtype's epsilon times the
#: largest value.
FLOOR = 8


def assert_parity(fast, plain, exact):
    """Assert that ``fast`` errs at most twice as much as ``plain``.

    Errors below :data:`FLOOR` units of rounding are always allowed.

    Args:
        fast: Result under test.
        plain: Result of plain PyTorch in the dtype of ``fast``.
        exact: Result in float64.
    """
    assert fast.shape == exact.shape
    eps = torch.finfo(fast.dtype).eps
    floor = FLOOR * eps * exact.abs().max().clamp(min=1e-30)
    error = (fast.double() - exact).abs().max()
    allowed = 2 * (plain.double() - exact).abs().max() + floor
    assert error <= allowed, f'error {error:.3g}, allowed {allowed:.3g}'


def laplacian_broadcast(x, y, bandwidth=4.0):
    """Laplacian kernel by its formula, with N x M x D values in memory."""
    distance = (x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1)
    return torch.exp(-distance / bandwidth)


def laplacian_broadcast_backward(grad, x, y, kernel, bandwidth=4.0):
    """Gradients of the kernel by formula, with N x M x D in memory."""
    sign = (x[..., :, None, :] - y[..., None, :, :]).sign()
    weight = (grad * kernel / -bandwidth)[..., None]
    return (weight * sign).sum(-2), -(weight * sign).sum(-3)


def dense_z(g, centering='both'):
    """Whitened matrix Z from the N x N matrix G, by loops over the keys."""
    n = g.shape[-1]
    scale = g.abs().amax((-2, -1), keepdim=True)
    g = g / scale
    mu = torch.stack([g[..., j].mean(-1) for j in range(n)], -1)
    eps = 1e-5 * mu.square().mean(-1) + 1e-20
    if centering == 'both':
        g = (
            g
            - torch.stack([g[..., i, :].mean(-1) for i in range(n)], -1)[
                ..., None
            ]
        )
    columns = []
    for j in range(n):
        column = g[..., :, j]
        centred = column - column.mean(-1, keepdim=True)
        variance = centred.square().mean(-1)
        columns.append(centred / (variance + eps).sqrt()[..., None])
    return torch.stack(columns, -1) / n + 1 / n


def run_python(cwd, *command, fails=False):
    """Run ``python COMMAND`` and return its output and errors as text.

    Args:
        cwd: Working directory.
        command: Script and arguments, converted to strings.
        fails: Whether the exit status must be other than 0. Default: False.
    """
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    text = result.stdout + result.stderr
    assert (result.returncode != 0) == fails, text[-3000:]
    return text


def metadata(path):
    """Metadata of a config's model in the metafile beside it."""
    models = yaml.safe_load((path.parent / 'metafile.yml').read_text())
    entries = {model['Name']: model for model in models['Models']}
    return entries[path.stem]['Metadata']
