"""Launches through pycuda: protocol, fallbacks and cache, without a GPU.

``FakeDriver`` stands for ``pycuda.driver`` and records what is asked of it;
the tests with the fixture ``gpu`` need the real one.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch

from cuda_ops import (
    cuda_build,
    cuda_kernels,
    cuda_launch,
    cuda_runtime,
    laplacian_kernel,
    newton_schulz_inverse,
    reference,
)

LAUNCH = cuda_launch.Launch('newton_schulz_float32', 5, 64, 4096, b'parameter')


class FakeFunction:
    def __init__(self, driver, name):
        self.driver, self.name = driver, name

    def set_attribute(self, attribute, value):
        self.driver.record('attribute', self.name, attribute, value)

    def _launch_kernel(self, grid, block, arguments, shared, stream):
        self.driver.record('launch', self.name, grid, block, shared, stream)
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
    monkeypatch.setattr(cuda_runtime, '_launchers', {})
    monkeypatch.setattr(cuda_runtime, '_reasons', {})
    monkeypatch.setattr(cuda_runtime, 'load', lambda *names: names)
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
    launch = cuda_runtime.launcher(3)
    assert launch.most_shared == 99_000
    assert cuda_runtime.status(3) == cuda_runtime.IN_USE
    assert driver.calls[0] == ('device', 3)
    loaded = [call[1] for call in driver.calls if call[0] == 'load']
    assert loaded == [('laplacian_kernel', '90'), ('newton_schulz', '90')]
    names = [call[1:] for call in driver.calls if call[0] == 'attribute']
    assert names == [
        (name, 'dynamic', 99_000)
        for source in cuda_launch.SOURCES
        for name in cuda_launch.kernel_names(source)
    ]


def test_stream_0_is_used_directly(driver):
    launch = cuda_runtime.launcher(0)
    driver.calls.clear()
    launch(LAUNCH)
    assert driver.calls == [
        ('launch', LAUNCH.kernel, (5, 1), (64, 1, 1), 4096, None)
    ]
    assert driver.stack == 0


def test_another_stream_waits_and_is_waited_for(driver, monkeypatch):
    launch = cuda_runtime.launcher(0)
    # Read again at every launch: the caller may change it.
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
    assert isinstance(driver.calls[1][-1], driver.Stream)


def test_a_refused_launch_raises_and_leaves_no_context(driver):
    launch = cuda_runtime.launcher(0)
    driver.fails = 'launch'
    with pytest.raises(RuntimeError, match='newton_schulz_float32: grid 5.*'):
        launch(LAUNCH)
    assert driver.stack == 0
    with pytest.raises(RuntimeError, match='split the batch'):
        launch(LAUNCH._replace(grid=2**31))


@pytest.mark.parametrize('failure', ['init', 'load'])
def test_a_driver_that_fails_warns_once(driver, failure):
    driver.fails = failure
    x, y = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    operators = cuda_kernels.operators(lambda index: cuda_runtime.launcher(0))
    run = operators['laplacian_kernel']
    with pytest.warns(UserWarning, match=f'cuda:0: OSError: {failure} failed'):
        result = run(x, y, 4.0)
    assert torch.equal(result, reference.laplacian_kernel(x, y, 4.0))
    assert driver.stack == 0
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        run(x, y, 4.0)
    reason = f'OSError: {failure} failed'
    assert cuda_runtime.status(0) == f'plain PyTorch ({reason})'
    # Another device may be able to do it.
    driver.fails = None
    assert cuda_runtime.status(1) == cuda_runtime.IN_USE


def test_without_nvcc_the_reason_says_what_to_do(
    driver, monkeypatch, tmp_path
):
    monkeypatch.setattr(cuda_runtime, 'load', cuda_build.load)
    monkeypatch.setattr(cuda_build, 'DEFAULT_CUDA_FOLDER', str(tmp_path))
    monkeypatch.setattr(cuda_build, 'fatbin', lambda source: tmp_path / source)
    for name in cuda_build.CUDA_FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.warns(UserWarning, match='nvcc.*make kernels'):
        assert cuda_runtime.launcher(0) is None
    assert 'nvcc' in cuda_runtime.status(0)


def test_threads_load_once(driver):
    barrier = threading.Barrier(8)
    found = []

    def ask():
        barrier.wait()
        found.append(cuda_runtime.launcher(0))

    threads = [threading.Thread(target=ask) for _ in range(8)]
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
        cuda_runtime.launcher(0)
    monkeypatch.setattr(
        torch.cuda, 'is_current_stream_capturing', lambda: False
    )
    assert cuda_runtime.launcher(0) is not None


def registered(tmp_path, installed):
    """Whether CUDA kernels are registered in a new process."""
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
        'print(cuda_ops.cuda_kernels.status(0))'
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


FAKE_NVCC = """#!/bin/sh
case "$1" in --version) echo version; exit 0;; esac
echo run >> "{log}"
while [ "$1" != -o ]; do shift; done
for i in 1 2 3 4 5 6 7 8; do printf 0123456789abcdef >> "$2"; sleep 0.05; done
"""
CODE = b'0123456789abcdef' * 8


@pytest.fixture
def fake_nvcc(monkeypatch, tmp_path):
    """An nvcc that writes slowly; returns the file that counts its runs."""
    log = tmp_path / 'log'
    nvcc = tmp_path / 'cuda' / 'bin' / 'nvcc'
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(FAKE_NVCC.format(log=log))
    nvcc.chmod(0o755)
    monkeypatch.setenv('CUDA_HOME', str(tmp_path / 'cuda'))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(cuda_build, 'fatbin', lambda source: tmp_path / source)
    return log


def load_many(count, queue):
    queue.put([cuda_build.load('newton_schulz', '90') for _ in range(count)])


def test_processes_share_the_cache(fake_nvcc, tmp_path):
    context = multiprocessing.get_context('fork')
    queue = context.Queue()
    workers = [
        context.Process(target=load_many, args=(count, queue))
        for count in (1, 1, 40)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert set(queue.get(timeout=60)) == {CODE}
    for worker in workers:
        worker.join()
    runs = len(fake_nvcc.read_text().splitlines())
    assert runs <= 3
    assert cuda_build.load('newton_schulz', '90') == CODE
    assert len(fake_nvcc.read_text().splitlines()) == runs
    (kept,) = (tmp_path / 'cache' / 'mmlaplacian').iterdir()
    assert kept.read_bytes() == CODE


def test_other_code_has_another_place_in_the_cache(fake_nvcc, monkeypatch):
    for architecture in ('90', '80', '90'):
        cuda_build.load('newton_schulz', architecture)
    assert len(fake_nvcc.read_text().splitlines()) == 2
    monkeypatch.setattr(cuda_build, '_nvcc_version', lambda path: 'newer')
    cuda_build.load('newton_schulz', '90')
    monkeypatch.setattr(cuda_build, 'FLAGS', ('-O1',))
    cuda_build.load('newton_schulz', '90')
    assert len(fake_nvcc.read_text().splitlines()) == 4


def test_a_cache_that_cannot_be_written(fake_nvcc, monkeypatch, tmp_path):
    (tmp_path / 'file').write_text('not a folder')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert cuda_build.load('newton_schulz', '90') == CODE


def test_a_fatbin_comes_first(fake_nvcc, tmp_path):
    (tmp_path / 'newton_schulz').write_bytes(b'fatbin')
    assert cuda_build.load('newton_schulz', '90') == b'fatbin'
    assert not fake_nvcc.exists()


def test_a_failing_nvcc_is_quoted(fake_nvcc, tmp_path):
    nvcc = tmp_path / 'cuda' / 'bin' / 'nvcc'
    nvcc.write_text(
        '#!/bin/sh\n[ "$1" = --version ] || { echo no such arch >&2; exit 1; }'
    )
    with pytest.raises(cuda_build.BuildError, match='no such arch'):
        cuda_build.load('newton_schulz', '90')


def test_a_fatbin_of_other_sources_is_not_found(monkeypatch, tmp_path):
    before = cuda_build.fatbin('newton_schulz')
    folder = tmp_path / 'cuda'
    folder.mkdir()
    for path in cuda_build.FOLDER.glob('*.cu*'):
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(cuda_build, 'FOLDER', folder)
    assert cuda_build.fatbin('newton_schulz').name == before.name
    with open(folder / 'storage.cuh', 'a') as file:
        file.write('\n')
    assert cuda_build.fatbin('newton_schulz').name != before.name


def sample(gpu, n=300):
    x = torch.randn(2, n, 32, device=gpu)
    return x, x[:, :49].clone()


def expected_kernel(x, y):
    return laplacian_kernel(x.double().cpu(), y.double().cpu()).float()


def test_opcheck(gpu):
    x, y = (t.requires_grad_() for t in sample(gpu))
    kernel = laplacian_kernel(x, y).detach()
    square = kernel[:, :49].clone().requires_grad_()
    ops = torch.ops.mmlaplacian
    for op, arguments in (
        (ops.laplacian_kernel, (x, y, 4.0)),
        (
            ops.laplacian_kernel_backward,
            (kernel, x.detach(), y.detach(), kernel, 4.0),
        ),
        (ops.newton_schulz_inverse, (square, 18, 0.01, 'identity')),
    ):
        torch.library.opcheck(op.default, arguments)


def test_side_streams(gpu):
    x, y = sample(gpu, 20_000)
    expected = expected_kernel(x + 1, y)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # Long enough for a launch that does not wait to be too early.
        torch.cuda._sleep(50_000_000)
        x += 1
        kernel = laplacian_kernel(x, y)
        copy = kernel.clone()
    stream.synchronize()
    torch.testing.assert_close(copy.cpu(), expected, rtol=1e-5, atol=1e-6)


def test_graph_capture(gpu):
    x, y = sample(gpu)
    laplacian_kernel(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel = laplacian_kernel(x, y)
        inverse = newton_schulz_inverse(kernel[:, :49])
    x.copy_(torch.randn_like(x))
    x[:, :49] = y
    graph.replay()
    torch.cuda.synchronize()
    expected = expected_kernel(x, y)
    torch.testing.assert_close(kernel.cpu(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(inverse, newton_schulz_inverse(kernel[:, :49]))


def test_threads_with_no_context_of_their_own(gpu):
    x, y = sample(gpu)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(laplacian_kernel(x, y).cpu())
    )
    thread.start()
    thread.join()
    torch.testing.assert_close(
        found[0], expected_kernel(x, y), rtol=1e-5, atol=1e-6
    )


def test_backward_of_a_module(gpu):
    x, y = sample(gpu)
    results = []
    for device, dtype in ((gpu, torch.float32), ('cpu', torch.float64)):
        leaves = [
            t.to(device, dtype).detach().requires_grad_() for t in (x, y)
        ]
        kernel = laplacian_kernel(*leaves)
        newton_schulz_inverse(kernel[:, :49]).sum().backward()
        results.append([leaf.grad.double().cpu() for leaf in leaves])
    for fast, exact in zip(*results, strict=True):
        torch.testing.assert_close(fast, exact, rtol=1e-3, atol=1e-3)


def test_the_last_device(gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip('there is one GPU')
    last = torch.device('cuda', torch.cuda.device_count() - 1)
    x, y = sample(last)
    kernel = laplacian_kernel(x, y)
    assert kernel.device == last
    torch.testing.assert_close(
        kernel.cpu(), expected_kernel(x, y), rtol=1e-5, atol=1e-6
    )


def test_more_values_than_32_bits_count(gpu):
    # 2.2e9 values of float16: 4.4 GB, and twice that for the gradient.
    if torch.cuda.mem_get_info()[0] < 24e9:
        pytest.skip('less than 24 GB are free')
    x = torch.randn(32, 66_800, 8, device=gpu, dtype=torch.float16)
    y = torch.randn(32, 1025, 8, device=gpu, dtype=torch.float16)
    kernel = laplacian_kernel(x, y)
    end = kernel[-1, -100:].cpu()
    exact = expected_kernel(x[-1, -100:], y[-1])
    torch.testing.assert_close(end.float(), exact, rtol=2e-3, atol=1e-4)
    backward = torch.ops.mmlaplacian.laplacian_kernel_backward
    grad_x, _ = backward(kernel, x, y, kernel, 4.0)
    exact_x, _ = reference.laplacian_kernel_backward(
        kernel[-1, -100:].double(),
        x[-1, -100:].double(),
        y[-1].double(),
        kernel[-1, -100:].double(),
        4.0,
    )
    torch.testing.assert_close(
        grad_x[-1, -100:].double(), exact_x, rtol=1e-2, atol=1e-2
    )
