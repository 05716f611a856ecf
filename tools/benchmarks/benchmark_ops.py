"""Time the operators beside every general way to compute the same."""

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

#: (B * h, N, M, D): tokens of stage 1 at 224 x 224 (twice) and 800 x 1333, of
#: stage 3 there, of stage 2 at 224 x 224; D = 64 as in tiny to huge.
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
OURS = 'ours'
#: Compiler options for additions.cpp, by variant.
ADDITIONS_OPTIONS = {
    'AVX-512': (
        *('-DVECTOR_BYTES=64', '-mavx512f', '-mavx512bw'),
        *('-mavx512vl', '-mavx512dq', '-mfma'),
    ),
    'AVX2': ('-DVECTOR_BYTES=32', '-mavx2', '-mfma'),
    'plain': ('-DVECTOR_BYTES=16',),
}
BASE = 'cdist'


def broadcast_form(x, y):
    """The formula, with N x M x D numbers in memory."""
    distance = (x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1)
    return torch.exp(distance / -BANDWIDTH)


def keops_product(x, y):
    """KeOps never returns the matrix: here, its product with one column."""
    from pykeops.torch import LazyTensor

    distance = (
        (LazyTensor(x[..., :, None, :]) - LazyTensor(y[..., None, :, :]))
        .abs()
        .sum(-1)
    )
    ones = torch.ones_like(y[..., :1])
    return (distance / -BANDWIDTH).exp() @ ones


def contenders(with_compile: bool) -> dict[str, Callable]:
    """Functions of (x, y), by name."""
    ways = {
        OURS: lambda x, y: laplacian_kernel(x, y, BANDWIDTH),
        BASE: lambda x, y: torch.exp(torch.cdist(x, y, p=1) / -BANDWIDTH),
        'broadcast': broadcast_form,
        'dot': lambda x, y: torch.exp(x @ y.mT),
    }
    if with_compile:
        # Each shape and grad mode is a build of its own, and few are kept.
        torch._dynamo.reset()
        ways['torch.compile'] = torch.compile(broadcast_form, dynamic=False)
    try:
        import pykeops

        pykeops.set_verbose(False)
        ways['keops'] = keops_product
    except ImportError:
        print('benchmark_ops.py: pykeops is not installed, left out')
    return ways


def synchronise(device):
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def check(function, x, y, exact):
    """Refuse to time a wrong result."""
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
    """Median seconds of each, taken in turns so that drifts hit all."""
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
    """Bytes above those held before; None where nobody can say."""
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
        # What was freed goes back, and the peak of resident memory is
        # forgotten: both on Linux only.
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
    if COMPILED.trouble:
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
                'benchmark_ops.py: the share of float adds is left out, '
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
    """One shape: forward, forward and backward, memory."""
    batch, n, m, d = shape
    x = torch.randn(batch, n, d, device=device) / 3
    y = torch.randn(batch, m, d, device=device) / 3
    grad = torch.randn(batch, n, m, device=device)
    exact = reference.laplacian_kernel(x, y, BANDWIDTH)
    ways = contenders(with_compile)
    # N x M x D numbers and their gradients must fit.
    if batch * n * m * d * 4 > 2**30:
        ways.pop('broadcast')
    for name, function in ways.items():
        if name != 'dot':
            check(function, x, y, exact)
    forward = {
        name: (lambda f=function: f(x, y)) for name, function in ways.items()
    }
    step = {
        name: training_step(function, x, y, grad)
        for name, function in ways.items()
    }
    row = dict(shape=shape, threads=threads, device=str(device))
    with torch.no_grad():
        row['forward_s'] = compare(forward, device)
        row['memory'] = peak_memory(forward[OURS], device)
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
        row['share'] = 2 * batch * n * m * d / row['forward_s'][OURS] / rate
    return row


def measure_inverse(size, count, device, threads) -> dict:
    """Newton-Schulz beside Cholesky and the general inverse."""
    landmarks = torch.randn(count, size, 32, device=device) / 3
    w = laplacian_kernel(landmarks, landmarks, BANDWIDTH)
    identity = torch.eye(size, device=device)
    ways = {
        OURS: lambda: newton_schulz_inverse(w),
        'plain': lambda: inverse_reference.newton_schulz_inverse(
            w, 16, 0.01, 'identity'
        ),
        'cholesky': lambda: torch.cholesky_inverse(
            torch.linalg.cholesky(w + 0.01 * identity)
        ),
        'inv': lambda: torch.linalg.inv(w + 0.01 * identity),
    }
    times = compare(ways, device)
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
    path = COMPILED.trouble or f'compiled, {COMPILED.variant}'
    return f'{name}, {os.cpu_count()} cores, CPU kernels: {path}'


def markdown(results: dict) -> str:
    """Ratios first: how many times longer each rival takes."""
    lines = [f'{results["machine"]}; PyTorch {results["torch"]}', '']
    for title, key, memory, size, extra in (
        (
            'forward',
            'forward_s',
            'memory',
            'output_bytes',
            ['share of float adds', 'memory / result'],
        ),
        (
            'forward and backward',
            'step_s',
            'gradient_memory',
            'gradient_bytes',
            ['memory of backward / gradients'],
        ),
    ):
        rows = results['kernel']
        names = [n for n in rows[0][key] if n != OURS]
        columns = ['threads', 'B*h, N, M, D', 'ours, ms', *names, *extra]
        lines += [
            f'Times longer than ours, {title}:',
            '',
            f'| {" | ".join(columns)} |',
            '|' + '---|' * len(columns),
        ]
        for row in rows:
            ours = row[key][OURS]
            cells = [
                str(row['threads']),
                ', '.join(map(str, row['shape'])),
                f'{ours * 1e3:.3f}',
                *(
                    f'{row[key][n] / ours:.2f}'
                    if n in row[key]
                    else 'too large'
                    for n in names
                ),
            ]
            if key == 'forward_s':
                share = row.get('share')
                cells.append('' if share is None else f'{share:.0%}')
            peak = row[memory]
            cells.append('' if peak is None else f'{peak / row[size]:.2f}')
            lines.append(f'| {" | ".join(cells)} |')
        lines.append('')
    names = list(results['inverse'][0]['forward_s'])
    lines += [
        'Newton-Schulz inverse, ms:',
        '',
        f'| threads | matrices | {" | ".join(names)} |',
        '|' + '---|' * (len(names) + 2),
    ]
    for row in results['inverse']:
        cells = [f'{row["forward_s"][n] * 1e3:.3f}' for n in names]
        lines.append(
            f'| {row["threads"]} | {row["count"]} of {row["size"]} x '
            f'{row["size"]} | {" | ".join(cells)} |'
        )
    return '\n'.join(lines) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--json', type=Path, help='write the figures there')
    parser.add_argument(
        '--markdown', type=Path, help='write the table there too'
    )
    parser.add_argument(
        '--no-compile',
        action='store_true',
        help='leave out torch.compile, which takes minutes to build',
    )
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == 'cuda' and not torch.cuda.is_available():
        sys.exit('benchmark_ops.py: --device cuda, but PyTorch sees no GPU')
    warnings.filterwarnings('ignore', category=UserWarning)
    torch.manual_seed(0)
    everything = torch.get_num_threads()
    counts = sorted({1, everything}) if device.type == 'cpu' else [everything]
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
            ours = row['forward_s'][OURS]
            print(
                f'{threads} threads, {shape}: {ours * 1e3:.3f} ms, cdist '
                f'{row["forward_s"][BASE] / ours:.1f} times longer',
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
