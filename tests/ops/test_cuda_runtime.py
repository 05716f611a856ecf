"""Launches through pycuda.

``FakeDriver`` replaces ``pycuda.driver`` and records the calls. Its functions
accept what the documentation of ``pycuda.driver.Function`` allows.
"""

import os
import re
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from simt.emulator import pack

from cuda_ops import COMPILED, fallback_reason
from cuda_ops.common import dispatch, launcher, nvcc
from cuda_ops.laplacian_kernel import reference

LAUNCH = launcher.make_launch(
    *('newton_schulz', torch.float32, 5, 64, 1024),
    *(torch.ones(1, 1, 2, 2), 3, 0.5),
)


class FakeFunction:
    def __init__(self, driver, name):
        self.driver, self.name = driver, name

    def set_attribute(self, attribute, value):
        self.driver.record('attribute', self.name, attribute, value)

    def __call__(
        self,
        *arguments,
        block,
        grid=(1, 1),
        stream=None,
        shared=0,
        texrefs=(),
        time_kernel=False,
    ):
        assert all(isinstance(a, np.number | np.void) for a in arguments)
        packed = pack(arguments)
        self.driver.record(
            'launch', self.name, grid, block, shared, stream, packed
        )
        self.driver.fail('launch')


class FakeDriver(types.ModuleType):
    """Records calls; ``fails`` names the call that raises."""

    def __init__(self):
        super().__init__('pycuda.driver')
        self.calls, self.stack, self.fails = [], 0, None
        driver = self

        class Context:
            def push(self):
                driver.stack += 1

            @staticmethod
            def pop():
                driver.stack -= 1

        class Device:
            def __init__(self, index):
                driver.record('device', index)

            def compute_capability(self):
                return 9, 0

            def get_attribute(self, attribute):
                return {'optin': 99_000}[attribute]

            def retain_primary_context(self):
                return Context()

        class Stream:
            handle = 77

            def __init__(self, flags):
                assert driver.stack == 1 and flags == 1

        self.Context, self.Device, self.Stream = Context, Device, Stream
        self.device_attribute = types.SimpleNamespace(
            MAX_SHARED_MEMORY_PER_BLOCK_OPTIN='optin'
        )
        self.function_attribute = types.SimpleNamespace(
            MAX_DYNAMIC_SHARED_SIZE_BYTES='dynamic'
        )

    def init(self):
        self.fail('init')

    def module_from_buffer(self, code):
        assert self.stack == 1
        self.record('load', code)
        self.fail('load')
        return types.SimpleNamespace(
            get_function=lambda name: FakeFunction(self, name)
        )

    def record(self, *call):
        self.calls.append(call)

    def fail(self, name):
        if name == self.fails:
            raise OSError(f'{name} failed')

    def count(self, name):
        return sum(call[0] == name for call in self.calls)


class FakeStream:
    def __init__(self, driver, handle):
        self.driver, self.cuda_stream = driver, handle

    def wait_stream(self, other):
        self.driver.record('wait', self.cuda_stream, other.cuda_stream)


@pytest.fixture
def driver(monkeypatch):
    driver = FakeDriver()
    package = types.ModuleType('pycuda')
    package.driver = driver
    package.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, 'pycuda', package)
    monkeypatch.setitem(sys.modules, 'pycuda.driver', driver)
    monkeypatch.setattr(launcher, '_launchers', {})
    monkeypatch.setattr(launcher, '_reasons', {})
    monkeypatch.setattr(
        launcher, 'load', lambda source, arch: (source.path.stem, arch)
    )
    for name, value in dict(
        init=lambda: None,
        is_available=lambda: True,
        is_current_stream_capturing=lambda: False,
        current_stream=lambda index: FakeStream(driver, 0),
        ExternalStream=lambda handle, device: FakeStream(driver, handle),
    ).items():
        monkeypatch.setattr(torch.cuda, name, value)
    return driver


def test_every_kernel_is_loaded_with_all_shared_memory(driver):
    launch = launcher.find_launcher(3)
    assert launch.max_shared == 99_000
    assert launcher.status(3) == launcher.IN_USE
    assert driver.calls[0] == ('device', 3)
    loaded = [call[1] for call in driver.calls if call[0] == 'load']
    assert loaded == [('laplacian_kernel', '90'), ('newton_schulz', '90')]
    names = [call[1:] for call in driver.calls if call[0] == 'attribute']
    assert names == [
        (name, 'dynamic', 99_000)
        for source in nvcc.SOURCES
        for name in launcher.kernel_names(source.kernels)
    ]


def test_stream_0_is_used_directly(driver):
    launch = launcher.find_launcher(0)
    driver.calls.clear()
    launch(LAUNCH)
    packed = pack(LAUNCH.arguments)
    assert driver.calls == [
        ('launch', LAUNCH.kernel, (5, 1), (64, 1, 1), 4096, None, packed)
    ]
    assert driver.stack == 0


def test_another_stream_is_ordered_before_and_after(driver, monkeypatch):
    launch = launcher.find_launcher(0)
    # The current stream is read at every launch, since it may change.
    monkeypatch.setattr(
        torch.cuda, 'current_stream', lambda index: FakeStream(driver, 5)
    )
    driver.calls.clear()
    launch(LAUNCH)
    assert [call[:3] for call in driver.calls] == [
        ('wait', 77, 5),
        ('launch', LAUNCH.kernel, (5, 1)),
        ('wait', 5, 77),
    ]
    assert isinstance(driver.calls[1][5], driver.Stream)


def test_a_refused_launch_raises_and_leaves_no_context(driver):
    launch = launcher.find_launcher(0)
    driver.fails = 'launch'
    with pytest.raises(RuntimeError, match='newton_schulz_float32: grid 5.*'):
        launch(LAUNCH)
    assert driver.stack == 0
    with pytest.raises(RuntimeError, match='split the batch'):
        launch(LAUNCH._replace(grid=2**31))


@pytest.mark.parametrize('failure', ['init', 'load'])
def test_a_failing_driver_warns_once(driver, failure):
    driver.fails = failure
    x, y = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    operators = dispatch.cuda_operators(
        lambda index: launcher.find_launcher(0)
    )
    run = operators['laplacian_kernel']
    with pytest.warns(UserWarning, match=f'cuda:0: OSError: {failure} failed'):
        result = run(x, y, 4.0)
    assert torch.equal(result, reference.laplacian_kernel(x, y, 4.0))
    assert driver.stack == 0
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        run(x, y, 4.0)
    reason = f'OSError: {failure} failed'
    assert launcher.status(0) == f'plain PyTorch ({reason})'
    # Other devices are tried independently.
    driver.fails = None
    assert launcher.status(1) == launcher.IN_USE


def test_without_nvcc_the_reason_says_what_to_do(
    driver, monkeypatch, tmp_path
):
    monkeypatch.setattr(launcher, 'load', nvcc.load)
    monkeypatch.setattr(nvcc, 'DEFAULT_CUDA_FOLDER', str(tmp_path))
    monkeypatch.setattr(nvcc.CudaSource, 'fatbin', lambda self: tmp_path / '-')
    for name in nvcc.CUDA_FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.warns(UserWarning, match='nvcc.*make kernels'):
        assert launcher.find_launcher(0) is None
    assert 'nvcc' in launcher.status(0)


def test_threads_load_once(driver):
    barrier = threading.Barrier(8)
    found = []

    def find():
        barrier.wait()
        found.append(launcher.find_launcher(0))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.count('load') == 2
    assert len(set(found)) == 1 and found[0] is not None


def test_nothing_is_loaded_while_a_graph_is_captured(driver, monkeypatch):
    monkeypatch.setattr(
        torch.cuda, 'is_current_stream_capturing', lambda: True
    )
    with pytest.raises(RuntimeError, match='once before capturing'):
        launcher.find_launcher(0)
    monkeypatch.setattr(
        torch.cuda, 'is_current_stream_capturing', lambda: False
    )
    assert launcher.find_launcher(0) is not None


def registered(tmp_path, installed):
    """Output of a new process on which CUDA kernels are registered."""
    if installed:
        package = tmp_path / 'pycuda'
        package.mkdir()
        (package / '__init__.py').write_text('raise AssertionError')
        hide = ''
    else:
        hide = (
            'import importlib.util as u; find = u.find_spec\n'
            'u.find_spec = lambda n: None if n == "pycuda" else find(n)\n'
        )
    code = hide + (
        'import sys, torch, cuda_ops\n'
        'assert "pycuda" not in sys.modules\n'
        'assert not torch.cuda.is_initialized()\n'
        'has = torch._C._dispatch_has_kernel_for_dispatch_key\n'
        'print([has(f"mmlaplacian::{n}", "CUDA") for n in (\n'
        '    "laplacian_kernel", "laplacian_kernel_backward",\n'
        '    "newton_schulz_inverse")])\n'
        'from cuda_ops.common import launcher\n'
        'print(launcher.status(0))'
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        env=os.environ | dict(PYTHONPATH=f'{root}{os.pathsep}{tmp_path}'),
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_import_without_pycuda(tmp_path):
    flags, status = registered(tmp_path, installed=False)
    assert flags == '[False, False, False]'
    assert 'pip install pycuda' in status


def test_import_with_pycuda_does_not_import_it(tmp_path):
    flags, _ = registered(tmp_path, installed=True)
    assert flags == '[True, True, True]'


def test_descriptor():
    x = torch.empty(2, 3, 5, 7).transpose(2, 3)
    (tensor, count, flag, scale) = (
        launcher.kernel_argument(a) for a in (x, 2**40, True, 0.5)
    )
    expected = np.array(
        [x.data_ptr(), *x.shape, *x.stride()], dtype=np.int64
    ).tobytes()
    assert tensor.tobytes() == expected
    assert (count.dtype, flag.dtype, scale.dtype) == ('i8', 'i8', 'f4')
    assert (count, flag, scale) == (2**40, 1, 0.5)
    # The argument is finite, since 0 * inf would be NaN.
    assert launcher.kernel_argument(-1e300) == torch.finfo(torch.float32).min


class OnGpu:
    """Stand-in for a tensor on a GPU, where only its metadata is read."""

    def __init__(self, *shape, dtype=torch.float32, index=0):
        self.shape, self.dtype = torch.Size(shape), dtype
        self.device = torch.device('cuda', index)

    def numel(self):
        return self.shape.numel()


X, Y = OnGpu(2, 9, 4), OnGpu(2, 5, 4)
HALF, DOUBLE = (OnGpu(2, 5, 4, dtype=d) for d in (torch.half, torch.double))


@pytest.mark.parametrize(
    'tensors, reason',
    [
        ((X, Y), None),
        ((DOUBLE, DOUBLE), 'float32, float16 and bfloat16, got torch.float64'),
        ((X, HALF), 'dtypes differ: torch.float32 and torch.float16'),
        ((X, OnGpu(2, 5, 4, index=1)), 'devices differ: cuda:0 and cuda:1'),
        ((X, OnGpu(2, 0, 4)), r'empty: shape \(2, 0, 4\)'),
        ((OnGpu(128, 128),), '128 x 128 matrix needs .* the GPU has 99000'),
        ((OnGpu(129, 129),), 'up to 128 x 128, got 129 x 129'),
        ((OnGpu(108, 108),), None),
        ((torch.empty(2, 2, device='meta'),), 'device type meta'),
    ],
)
def test_fallback_reasons(driver, tensors, reason):
    names = {1: 'newton_schulz_inverse', 2: 'laplacian_kernel'}
    found = fallback_reason(names[len(tensors)], *tensors)
    assert found is reason is None or re.search(reason, found), found


def test_fallback_reason_of_a_device(driver, monkeypatch):
    driver.fails = 'init'
    with pytest.warns(UserWarning, match='init failed'):
        assert 'init failed' in fallback_reason('laplacian_kernel', X, Y)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    assert 'no GPU' in fallback_reason('laplacian_kernel', X, Y)
    monkeypatch.setattr(launcher.importlib.util, 'find_spec', lambda n: None)
    assert 'pip install' in fallback_reason('laplacian_kernel', X, Y)


def test_fallback_reason_on_the_cpu():
    x = torch.ones(2, 2)
    assert (
        fallback_reason('laplacian_kernel', x, x)
        == COMPILED.unavailable_reason
    )


@pytest.mark.parametrize(
    'arguments, message',
    [(('softmax',), "got 'softmax'"), (('laplacian_kernel',), 'got none')],
)
def test_fallback_reason_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        fallback_reason(*arguments)


def test_fallbacks_are_logged(caplog):
    caplog.set_level('DEBUG', logger='cuda_ops')
    x = torch.ones(3, 2, dtype=torch.double)
    operators = dispatch.cuda_operators(lambda index: None)
    operators['laplacian_kernel'](x, x, 4.0)
    (record,) = caplog.records
    assert 'laplacian_kernel: plain PyTorch runs: ' in record.message
    assert 'got torch.float64' in record.message
