"""Checks that only the CUDA kernels and their emulation need.

The emulation compiles the same sources with g++ and ``simt/simt.h`` and is
launched with the same parameter bytes.
"""

import os
from pathlib import Path

import pytest
import torch
from backends import (
    REFERENCE_OPERATORS,
    Backend,
    check_kernel,
    emulated_operators,
    laplacian_cuda,
)
from helpers import laplacian_broadcast, run_python

SIMT = Path(__file__).parent / 'simt'


@pytest.fixture
def emulated(emulator):
    """The emulated backend, with all of its shared memory."""
    yield Backend('emulated', 'cpu', emulated_operators(emulator), emulator)
    emulator.max_shared = 227 * 1024


@pytest.mark.parametrize('m', [7, 49, 64])
def test_many_tokens_for_a_block(cuda_backend, m, monkeypatch):
    # Large batches give a block 256 tokens, or as many as fit.
    monkeypatch.setattr(laplacian_cuda, 'FEW_BLOCKS', 0)
    x, y, grad = (
        torch.randn(2, *axes, device=cuda_backend.device)
        for axes in ((333, 40), (m, 40), (333, m))
    )
    check_kernel(cuda_backend, x, y, grad)


def test_converged_matrices_stop(emulated):
    points = torch.randn(1, 5, 8)
    matrix = laplacian_broadcast(points, points)
    results, barriers = [], []
    for num_iters in (3, 20, 1000):
        before = emulated.emulator.barriers()
        results.append(
            emulated.newton_schulz_inverse(matrix, num_iters, 0.01, 'identity')
        )
        barriers.append(emulated.emulator.barriers() - before)
    assert barriers[0] < barriers[1] == barriers[2]
    assert torch.equal(results[1], results[2])
    torch.testing.assert_close(
        results[1], torch.linalg.inv(matrix + 0.01 * torch.eye(5))
    )


def count_launches(backend, name, arguments):
    """Launches of one call, whose result is that of the reference."""
    backend.emulator.launches.clear()
    result = getattr(backend, name)(*arguments)
    expected = REFERENCE_OPERATORS[name](*arguments)
    torch.testing.assert_close(result, expected)
    return len(backend.emulator.launches)


X, Y, MATRIX = torch.ones(2, 20, 4), torch.zeros(2, 5, 4), torch.eye(128)
KERNEL = torch.full((2, 20, 5), 0.5)
SOLVER = (9, 0.01, 'identity')


@pytest.mark.parametrize(
    'name, arguments, launches',
    [
        ('laplacian_kernel', (X, Y, 4.0), 1),
        ('laplacian_kernel', (X.double(), Y.double(), 4.0), 0),
        ('laplacian_kernel', (X[:, :0], Y, 4.0), 0),
        ('laplacian_kernel', (X, Y[:, :0], 4.0), 0),
        ('laplacian_kernel', (X[..., :0], Y[..., :0], 4.0), 0),
        ('laplacian_kernel_backward', (KERNEL, X, Y, KERNEL, 4.0), 2),
        ('laplacian_kernel_backward', (KERNEL.double(), X, Y, KERNEL, 4.0), 0),
        ('newton_schulz_inverse', (MATRIX, *SOLVER), 1),
        ('newton_schulz_inverse', (torch.eye(129), *SOLVER), 0),
        ('newton_schulz_inverse', (MATRIX.double(), *SOLVER), 0),
    ],
)
def test_fallback_by_dtype_and_size(emulated, name, arguments, launches):
    assert count_launches(emulated, name, arguments) == launches


@pytest.mark.parametrize('size, launches', [(128, 0), (108, 1)])
def test_fallback_by_shared_memory(emulated, size, launches):
    emulated.emulator.max_shared = 99 * 1024
    arguments = (torch.eye(size), *SOLVER)
    found = count_launches(emulated, 'newton_schulz_inverse', arguments)
    assert found == launches


def test_kernels_stay_within_their_tensors(emulator, monkeypatch):
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get('PYTHONPATH', '')])
    monkeypatch.setenv('PYTHONPATH', path)
    text = run_python(root, SIMT / 'guarded.py', emulator.folder)
    assert 'nothing beyond' in text


def test_emulator_refuses_faulty_launches(emulator):
    x, y = torch.randn(1, 1, 20, 4), torch.randn(1, 1, 5, 4)
    out = torch.empty(1, 1, 20, 5)
    launch = laplacian_cuda.launch_forward(x, y, out, 4.0)
    emulator(launch)
    for change in (
        dict(arguments=launch.arguments[:-1]),
        dict(block=2048),
        dict(shared=launch.shared // 2),
    ):
        with pytest.raises(RuntimeError, match='laplacian_forward_float32'):
            emulator(launch._replace(**change))
