"""Fixtures of the operators' backends."""

import shutil

import pytest
import torch
from backends import (
    BACKENDS,
    COMPILED,
    CUDA_BACKENDS,
    DISPATCHED_OPERATORS,
    REFERENCE_OPERATORS,
    VARIANTS,
    Backend,
    Emulator,
    emulated_operators,
)


@pytest.fixture(scope='session')
def emulator(tmp_path_factory):
    """The CUDA sources, compiled once to run on the CPU."""
    compiler = shutil.which('g++')
    if compiler is None:
        pytest.skip('the emulation needs g++, which is missing')
    return Emulator(compiler, tmp_path_factory.mktemp('emulator'))


def make_backend(name, request):
    """Yield a backend by name, or skip with the reason why it cannot run."""
    if name == 'reference':
        yield Backend(name, 'cpu', REFERENCE_OPERATORS)
    elif name == 'reference on CUDA':
        if not torch.cuda.is_available():
            if request.config.getoption('--require-cuda'):
                pytest.fail('--require-cuda: PyTorch sees no GPU')
            pytest.skip('PyTorch sees no GPU')
        yield Backend(name, 'cuda', REFERENCE_OPERATORS)
    elif name in VARIANTS:
        if COMPILED.unavailable_reason:
            if request.config.getoption('--require-compiled'):
                pytest.fail(
                    f'--require-compiled: {COMPILED.unavailable_reason}'
                )
            pytest.skip(COMPILED.unavailable_reason)
        try:
            COMPILED.use_variant(name)
        except ValueError as error:
            pytest.skip(str(error))
        yield Backend(name, 'cpu', DISPATCHED_OPERATORS)
        COMPILED.use_variant()
    elif name == 'emulated':
        emulator = request.getfixturevalue('emulator')
        operators = emulated_operators(emulator)
        yield Backend(name, 'cpu', operators, emulator)
        emulator.backwards = False
        emulator.max_shared = 227 * 1024
    else:
        yield Backend(
            name, request.getfixturevalue('gpu'), DISPATCHED_OPERATORS
        )


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Every implementation of the operators."""
    yield from make_backend(request.param, request)


@pytest.fixture(params=VARIANTS)
def compiled_backend(request):
    """The compiled CPU kernels for every instruction set."""
    yield from make_backend(request.param, request)


@pytest.fixture(params=CUDA_BACKENDS)
def cuda_backend(request):
    """The CUDA kernels, emulated and on a GPU."""
    yield from make_backend(request.param, request)
