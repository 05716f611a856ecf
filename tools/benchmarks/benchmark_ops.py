"""Compare the speed and memory of the operators with general PyTorch code."""

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import cuda_ops
from cuda_ops import (
    COMPILED,
    laplacian_kernel,
    newton_schulz_inverse,
)
from cuda_ops.laplacian_kernel import reference
from cuda_ops.newton_schulz import reference as inverse_reference

#: (B * h, N, M, D) of stage 1 at 224 x 224 (twice) and 800 x 1333, of stage 3
#: at 800 x 1333, and of stage 2 at 224 x 224. Tiny to huge have D = 64.
SHAPES = [
    (2, 3136, 49, 32),
    (1, 3136, 49, 64),
    (2, 66800, 49, 32),
    (10, 4200, 49, 32),
    (16, 784, 49, 64),
]
BANDWIDTH = 4.0
ROUNDS = 7
ROUND_S = 0.05
OPERATOR = 'ours'
CDIST = 'cdist'
#: Compiler options for additions.cpp, by variant.
ADDITIONS_OPTIONS = {
    'AVX-512': (
        *('-DVECTOR_BYTES=64', '-mavx512f', '-mavx512bw'),
        *('-mavx512vl', '-mavx512dq', '-mfma'),
    ),
    'AVX2': ('-DVECTOR_BYTES=32', '-mavx2', '-mfma'),
    'plain': ('-DVECTOR_BYTES=16',),
}


def broadcast_form(x, y):
    """The formula with broadcasting, which stores N x M x D numbers."""
    distance = (x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1)
    return torch.exp(distance / -BANDWIDTH)


def keops_product(x, y):
    """Product of the matrix and a column of ones; KeOps stores no matrix."""
    from pykeops.torch import LazyTensor

    distance = (
        (LazyTensor(x[..., :, None, :]) - LazyTensor(y[..., None, :, :]))
        .abs()
        .sum(-1)
    )
    ones = torch.ones_like(y[..., :1])
    return (distance / -BANDWIDTH).exp() @ ones


def implementations(with_compile: bool) -> dict[str, Callable]:
    """Functions of (x, y) to compare, by name."""
    functions = {
        OPERATOR: lambda x, y: laplacian_kernel(x, y, BANDWIDTH),
        CDIST: lambda x, y: torch.exp(torch.cdist(x, y, p=1) / -BANDWIDTH),
        'broadcast': broadcast_form,
        'dot': lambda x, y: torch.exp(x @ y.mT),
    }
    if with_compile:
        # Each shape and grad mode is compiled anew, and the cache is small.
        torch._dynamo.reset()
        functions['torch.compile'] = torch.compile(
            broadcast_form, dynamic=False
        )
    try:
        import pykeops

        pykeops.set_verbose(False)
        functions['keops'] = keops_product
    except ImportError:
        print('benchmark_ops.py: pykeops is not installed and is skipped')
    return functions


def synchronise(device):
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def check(function, x, y, exact):
    """Check the result of a function before it is timed."""
    result = function(x, y)
    expected = exact.sum(-1, keepdim=True) if result.shape[-1] == 1 else exact
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def repeat(function, count, device) -> float:
    synchronise(device)
    start = time.perf_counter()
    for _ in range(count):
        function()
    synchronise(device)
    return (time.perf_counter() - start) / count


def compare(functions: dict[str, Callable], device) -> dict[str, float]:
    """Median seconds of each function.

    The functions run in turns, so that changes of the machine affect them all.
    """
    counts = {}
    for name, function in functions.items():
        repeat(function, 1, device)
        once = repeat(function, 1, device)
        counts[name] = max(1, min(1000, int(ROUND_S / once)))
    times = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            times[name].append(repeat(function, counts[name], device))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(function, device) -> int | None:
    """Peak bytes that a function allocates; None if that is unknown.

    On a CPU the system must be Linux.
    """
    function()
    synchronise(device)
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = function()
        synchronise(device)
        del result
        return torch.cuda.max_memory_allocated(device) - before
    try:
        # Return freed memory to the system, and reset the peak.
        ctypes.CDLL(None).malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5')
    except (AttributeError, OSError):
        return None

    def resident(key):
        for line in Path('/proc/self/status').read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
        raise KeyError(key)

    before = resident('VmRSS')
    result = function()
    peak = resident('VmHWM') - before
    del result
    return max(peak, 0)


def training_step(function, x, y, grad):
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()

    def step():
        x.grad = y.grad = None
        out = function(x, y)
        out.backward(grad[..., : out.shape[-1]])
        return x.grad

    return step


def additions_per_second(count: int = 10**9) -> float | None:
    """Rate at which one thread adds floats in registers.

    Args:
        count: Approximate number of additions to time. Default: 10**9.

    Returns:
        Additions per second with the instruction set in use, or None if there
        is no compiled library or no working C++ compiler.
    """
    if COMPILED.unavailable_reason:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, 'additions.so')
        command = [
            *(os.environ.get('CXX', 'c++'), '-std=c++17', '-O3'),
            *('-shared', '-fPIC', *ADDITIONS_OPTIONS[COMPILED.variant]),
            *('-I', str(Path(cuda_ops.__file__).parent), '-o', str(library)),
            str(Path(__file__).with_name('additions.cpp')),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, 'stderr', None) or error
            print(
                'benchmark_ops.py: the share of float adds is skipped, '
                f'because additions.cpp does not compile: {reason}'
            )
            return None
        additions = ctypes.CDLL(str(library)).additions
    additions.argtypes = [ctypes.c_int64]
    additions.restype = ctypes.c_double
    start = time.perf_counter()
    done = additions(count)
    return done / (time.perf_counter() - start)


def measure_kernel(
    shape, device, threads, with_compile, adds_per_second=None
) -> dict:
    """Time and memory of forward and backward passes of one shape."""
    batch, n, m, d = shape
    x = torch.randn(batch, n, d, device=device) / 3
    y = torch.randn(batch, m, d, device=device) / 3
    grad = torch.randn(batch, n, m, device=device)
    exact = reference.laplacian_kernel(x, y, BANDWIDTH)
    functions = implementations(with_compile)
    # The N x M x D numbers and their gradients must fit into memory.
    if batch * n * m * d * 4 > 2**30:
        functions.pop('broadcast')
    for name, function in functions.items():
        if name != 'dot':
            check(function, x, y, exact)
    forward = {
        name: (lambda f=function: f(x, y))
        for name, function in functions.items()
    }
    step = {
        name: training_step(function, x, y, grad)
        for name, function in functions.items()
    }
    row = dict(shape=shape, threads=threads, device=str(device))
    with torch.no_grad():
        row['forward_s'] = compare(forward, device)
        row['memory'] = peak_memory(forward[OPERATOR], device)
        row['gradient_memory'] = peak_memory(
            lambda: torch.ops.mmlaplacian.laplacian_kernel_backward(
                grad, x, y, exact, BANDWIDTH
            ),
            device,
        )
    row['step_s'] = compare(step, device)
    row['output_bytes'] = batch * n * m * 4
    row['gradient_bytes'] = batch * (n + m) * d * 4
    if adds_per_second is not None:
        rate = threads * adds_per_second
        row['share'] = (
            2 * batch * n * m * d / row['forward_s'][OPERATOR] / rate
        )
    return row


def measure_inverse(size, count, device, threads) -> dict:
    """Time of Newton-Schulz, Cholesky and the general inverse."""
    landmarks = torch.randn(count, size, 32, device=device) / 3
    w = laplacian_kernel(landmarks, landmarks, BANDWIDTH)
    identity = torch.eye(size, device=device)
    functions = {
        OPERATOR: lambda: newton_schulz_inverse(w),
        'plain': lambda: inverse_reference.newton_schulz_inverse(
            w, 16, 0.01, 'identity'
        ),
        'cholesky': lambda: torch.cholesky_inverse(
            torch.linalg.cholesky(w + 0.01 * identity)
        ),
        'inv': lambda: torch.linalg.inv(w + 0.01 * identity),
    }
    times = compare(functions, device)
    return dict(
        size=size,
        count=count,
        threads=threads,
        device=str(device),
        forward_s=times,
    )


def machine(device) -> str:
    if device.type == 'cuda':
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    info = Path('/proc/cpuinfo')
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith('model name'):
                name = line.partition(':')[2].strip()
                break
    path = COMPILED.unavailable_reason or f'compiled, {COMPILED.variant}'
    return f'{name}, {os.cpu_count()} cores, CPU kernels: {path}'


def markdown(results: dict) -> str:
    """Tables of the time relative to ours, and of memory."""
    lines = [
        f'{results["machine"]}; PyTorch {results["torch"]}',
        '',
        'Time relative to ours, forward:',
        '',
        *kernel_table(
            results['kernel'], 'forward_s', 'memory', 'output_bytes'
        ),
        '',
        'Time relative to ours, forward and backward:',
        '',
        *kernel_table(
            results['kernel'], 'step_s', 'gradient_memory', 'gradient_bytes'
        ),
        '',
        'Newton-Schulz inverse, ms:',
        '',
    ]
    names = list(results['inverse'][0]['forward_s'])
    rows = [
        [
            row['threads'],
            f'{row["count"]} of {row["size"]} x {row["size"]}',
            *(f'{row["forward_s"][name] * 1e3:.3f}' for name in names),
        ]
        for row in results['inverse']
    ]
    lines += table(['threads', 'matrices', *names], rows)
    return '\n'.join(lines) + '\n'


def kernel_table(rows, seconds: str, memory: str, size: str) -> list[str]:
    """Table of one kind of pass, by the keys of its figures."""
    names = [name for name in rows[0][seconds] if name != OPERATOR]
    extra = ['memory of backward / gradients']
    if seconds == 'forward_s':
        extra = ['share of float adds', 'memory / result']
    cells = []
    for row in rows:
        ours, peak, share = row[seconds][OPERATOR], row[memory], ''
        ratios = (
            f'{row[seconds][name] / ours:.2f}'
            if name in row[seconds]
            else 'too large'
            for name in names
        )
        if 'share' in row:
            share = f'{row["share"]:.0%}'
        cells.append(
            [
                row['threads'],
                ', '.join(map(str, row['shape'])),
                f'{ours * 1e3:.3f}',
                *ratios,
                *([share] if len(extra) == 2 else []),
                '' if peak is None else f'{peak / row[size]:.2f}',
            ]
        )
    return table(
        ['threads', 'B*h, N, M, D', 'ours, ms', *names, *extra], cells
    )


def table(head: list[str], rows: list[list]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f'| {" | ".join(head)} |', '|' + '---|' * len(head)]
    return lines + [f'| {" | ".join(map(str, row))} |' for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--device', default='cpu', help='cpu or cuda (default: cpu)'
    )
    parser.add_argument(
        '--json', type=Path, help='write the figures to this file'
    )
    parser.add_argument(
        '--markdown', type=Path, help='write the tables to this file'
    )
    parser.add_argument(
        '--no-compile',
        action='store_true',
        help='skip torch.compile, which takes minutes to compile',
    )
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == 'cuda' and not torch.cuda.is_available():
        sys.exit('benchmark_ops.py: --device cuda, but PyTorch sees no GPU')
    warnings.filterwarnings('ignore', category=UserWarning)
    torch.manual_seed(0)
    all_threads = torch.get_num_threads()
    counts = (
        sorted({1, all_threads}) if device.type == 'cpu' else [all_threads]
    )
    results = dict(
        machine=machine(device),
        torch=torch.__version__,
        kernel=[],
        inverse=[],
    )
    adds_per_second = additions_per_second() if device.type == 'cpu' else None
    for threads in counts:
        torch.set_num_threads(threads)
        for shape in SHAPES:
            row = measure_kernel(
                shape, device, threads, not args.no_compile, adds_per_second
            )
            results['kernel'].append(row)
            ours = row['forward_s'][OPERATOR]
            print(
                f'{threads} threads, {shape}: {ours * 1e3:.3f} ms, cdist '
                f'{row["forward_s"][CDIST] / ours:.1f} times longer',
                flush=True,
            )
        for size, count in ((49, 2), (49, 32), (100, 32)):
            results['inverse'].append(
                measure_inverse(size, count, device, threads)
            )
    text = markdown(results)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + '\n')
    if args.markdown:
        args.markdown.write_text(text)


if __name__ == '__main__':
    main()
