"""The CUDA kernels against the reference, emulated and on a GPU.

g++ compiles the same source files with ``simt/simt.h``, and the emulation gets
the same parameter bytes as a GPU.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import assert_parity, laplacian_broadcast
from simt.emulator import Emulator

from cuda_ops.common.dispatch import cuda_operators
from cuda_ops.laplacian_kernel import cuda, reference
from cuda_ops.newton_schulz import reference as inverse_reference

SIMT = Path(__file__).parent / 'simt'
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
#: Leading axes, N, M, D: a single value, one landmark less and more than a
#: group, whole and broken tiles of tokens, several groups and slabs.
SHAPES = [
    ((), 1, 1, 1),
    ((2,), 130, 7, 5),
    ((1, 3), 129, 48, 16),
    ((2, 2), 150, 49, 32),
    ((1, 2), 65, 50, 64),
    ((1,), 70, 64, 80),
    ((2,), 67, 128, 64),
    ((1,), 66, 129, 32),
    ((1,), 33, 49, 200),
    ((2, 1, 2), 9, 9, 8),
]
BANDWIDTH = 4.0


@pytest.fixture(scope='module')
def emulator(tmp_path_factory):
    compiler = shutil.which('g++')
    if compiler is None:
        pytest.skip('g++, which compiles the emulation, is missing')
    return Emulator(compiler, tmp_path_factory.mktemp('emulator'))


class Place:
    """Where kernels run, with the operators as attributes."""

    def __init__(self, device, functions, emulator=None):
        self.device = torch.device(device)
        self.emulator = emulator
        for name, function in functions.items():
            setattr(self, name, function)


@pytest.fixture(params=['emulated', 'cuda'])
def place(request):
    if request.param == 'emulated':
        emulator = request.getfixturevalue('emulator')
        functions = cuda_operators(lambda index: emulator)
        yield Place('cpu', functions, emulator)
        emulator.backwards = False
        emulator.max_shared = 227 * 1024
        return
    gpu = request.getfixturevalue('gpu')
    names = ('laplacian_kernel', 'laplacian_kernel_backward')
    functions = {
        name: getattr(torch.ops.mmlaplacian, name)
        for name in (*names, 'newton_schulz_inverse')
    }
    yield Place(gpu, functions)


def both_gradients(function, x, y, grad):
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    out = function(x, y)
    return torch.autograd.grad(out, (x, y), grad.to(out.dtype))


def check_kernel(place, x, y, grad, bandwidth=BANDWIDTH):
    """Values and both gradients; returns the three results."""
    exact = laplacian_broadcast(x.double(), y.double(), bandwidth)
    plain = reference.laplacian_kernel(x, y, bandwidth)
    kernel = place.laplacian_kernel(x, y, bandwidth)
    assert kernel.dtype == x.dtype and kernel.is_contiguous()
    assert_parity(kernel, plain, exact)
    arguments = (grad, x, y, kernel)
    grads = place.laplacian_kernel_backward(*arguments, bandwidth)
    plains = reference.laplacian_kernel_backward(*arguments, bandwidth)
    exacts = reference.laplacian_kernel_backward(
        *(t.double() for t in arguments), bandwidth
    )
    for part in zip(grads, plains, exacts, strict=True):
        assert part[0].dtype == x.dtype and part[0].is_contiguous()
        assert_parity(*part)
    return kernel, *grads


def sample(place, shape, dtype):
    batch, n, m, d = shape
    x, y, grad = (
        torch.randn(*batch, *axes, device=place.device).to(dtype)
        for axes in ((n, d), (m, d), (n, m))
    )
    return x, y, grad


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_values_and_gradients(place, shape, dtype):
    check_kernel(place, *sample(place, shape, dtype))


@pytest.mark.parametrize('bandwidth', [0.3, 60.0, 1e-40])
def test_bandwidths(place, bandwidth):
    x, y, grad = sample(place, ((), 20, 9, 6), torch.float32)
    check_kernel(place, x, y, 1e-9 * grad, bandwidth)


@pytest.mark.parametrize('m', [7, 49, 64])
def test_many_tokens_for_a_block(place, m, monkeypatch):
    # As in a large batch: 256 tokens for each block, or what fits.
    monkeypatch.setattr(cuda, 'FEW_BLOCKS', 0)
    check_kernel(place, *sample(place, ((2,), 333, m, 40), torch.float32))


def test_reference_gradient_is_autograd_of_the_formula(place):
    x, y, grad = sample(place, ((2,), 40, 9, 6), torch.float32)
    kernel = place.laplacian_kernel(x, y, BANDWIDTH)
    grads = place.laplacian_kernel_backward(grad, x, y, kernel, BANDWIDTH)
    exact = both_gradients(
        laplacian_broadcast, x.double(), y.double(), grad.double()
    )
    for fast, part in zip(grads, exact, strict=True):
        torch.testing.assert_close(fast.double(), part, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('m', [49, 64])
def test_gradient_at_ties_is_exactly_zero(place, m, dtype):
    x = torch.full((2, 70, 40), 0.3, device=place.device, dtype=dtype)
    y = torch.full((2, m, 40), 0.3, device=place.device, dtype=dtype)
    # Zeros of either sign are ties, too.
    x[..., 0], y[..., 0] = 0.0, -0.0
    grad = torch.randn(2, 70, m, device=place.device).to(dtype)
    kernel, grad_x, grad_y = check_kernel(place, x, y, grad)
    assert (kernel == 1).all()
    assert not grad_x.any() and not grad_y.any()


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_many_ties(place, dtype):
    x, y, grad = sample(place, ((2,), 90, 49, 33), dtype)
    check_kernel(place, (2 * x).round() / 2, (2 * y).round() / 2, grad)


def test_differences_of_one_bit(place):
    x, y, grad = sample(place, ((), 64, 49, 16), torch.float32)
    y = x[:49].nextafter(torch.full_like(y, torch.inf))
    check_kernel(place, x, y, grad)
    # The smallest normal numbers, and ties among them.
    tiny = torch.finfo(torch.float32).tiny
    x, y = x.round() * tiny, y.round() * tiny
    check_kernel(place, x, y, 1e-9 * grad * tiny, bandwidth=tiny)


def test_collapsed_landmarks(place):
    x, y, grad = sample(place, ((2,), 80, 49, 32), torch.float32)
    check_kernel(place, x, y[:, :1].expand(y.shape), grad)


def test_head_slices_of_a_projection(place):
    b, n, h, d = 2, 70, 3, 16
    # Reading anything but q and k gives NaN.
    qkv = torch.full((b, n, 3, h, d), torch.nan, device=place.device)
    qkv[:, :, :2] = torch.randn(b, n, 2, h, d, device=place.device)
    q, k = (qkv[:, :, i].transpose(1, 2) for i in range(2))
    landmarks = k[:, :, 1::7]
    grad = torch.randn(b, h, n, landmarks.shape[2], device=place.device)
    padded = torch.full((b, h, n, 20), torch.nan, device=place.device)
    padded[..., : grad.shape[-1]] = grad
    check_kernel(place, q, landmarks, padded[..., : grad.shape[-1]])


def test_columns_apart_and_expanded_gradients(place):
    x = torch.randn(2, 40, 70, device=place.device).mT
    y = torch.randn(2, 40, 30, device=place.device)[..., ::2].mT
    one = torch.ones((), device=place.device)
    check_kernel(place, x, y, one.expand(2, 70, 15))


def test_offsets_beyond_32_bits(place):
    # 4 GiB of address space, of which two pages are touched.
    row = 2**31 - 64
    try:
        memory = torch.empty(
            row + 128, dtype=torch.float16, device=place.device
        )
    except RuntimeError as error:
        pytest.skip(f'no 4 GiB: {error}')
    x = memory.as_strided((2, 64), (row + 64, 1))
    x.copy_(torch.randn(2, 64))
    y = torch.randn(5, 64, device=place.device).half()
    grad = torch.randn(2, 5, device=place.device).half()
    check_kernel(place, x, y, grad)


def test_more_matrices_than_a_grid_axis(place):
    x, y, _ = sample(place, ((65_537,), 1, 1, 1), torch.float32)
    kernel = place.laplacian_kernel(x, y, BANDWIDTH)
    torch.testing.assert_close(kernel, laplacian_broadcast(x, y))


def test_non_finite_values(place):
    x, y, _ = sample(place, ((), 30, 9, 4), torch.float32)
    x[3, 1], x[5, 2], y[7, 0] = torch.nan, torch.inf, -torch.inf
    kernel = place.laplacian_kernel(x, y, BANDWIDTH)
    expected = reference.laplacian_kernel(x, y, BANDWIDTH)
    torch.testing.assert_close(kernel, expected, equal_nan=True)
    assert kernel[3].isnan().all() and not kernel[5, :7].any()


def repeated(place, function):
    """Results of two runs, the second in another order of the threads."""
    first = function()
    if place.emulator:
        place.emulator.backwards = True
    return first, function()


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('m', [49, 64])
def test_the_same_bits_at_every_run(place, m, dtype):
    x, y, grad = sample(place, ((2,), 300, m, 40), dtype)

    def run():
        kernel = place.laplacian_kernel(x, y, BANDWIDTH)
        return kernel, *place.laplacian_kernel_backward(
            grad, x, y, kernel, BANDWIDTH
        )

    for one, other in zip(*repeated(place, run), strict=True):
        assert torch.equal(one, other)


def landmark_matrix(place, size, spread, batch=(2,)):
    points = spread * torch.randn(*batch, size, 8)
    return laplacian_broadcast(points, points).to(place.device)


def check_inverse(place, matrix, num_iters, ridge=0.01, init='identity'):
    arguments = (num_iters, ridge, init)
    fast = place.newton_schulz_inverse(matrix, *arguments)
    assert fast.dtype == matrix.dtype and fast.is_contiguous()
    plain = inverse_reference.newton_schulz_inverse(matrix, *arguments)
    exact = inverse_reference.newton_schulz_inverse(
        matrix.double(), *arguments
    )
    assert_parity(fast, plain, exact)
    return fast


@pytest.mark.parametrize(
    'init, num_iters', [('identity', 18), ('transpose', 29)]
)
@pytest.mark.parametrize('size', [1, 3, 7, 48, 49, 50, 64, 65, 128])
@pytest.mark.parametrize('spread', [0, 0.1, 1])
def test_inverse(place, size, spread, init, num_iters):
    matrix = landmark_matrix(place, size, spread, batch=(1,))
    inverse = check_inverse(place, matrix, num_iters, init=init)
    assert torch.equal(inverse, inverse.mT)


@pytest.mark.parametrize('init', ['identity', 'transpose'])
@pytest.mark.parametrize('num_iters', [1, 3, 7])
def test_unfinished_inverse(place, num_iters, init):
    check_inverse(place, landmark_matrix(place, 49, 0.2), num_iters, init=init)


@pytest.mark.parametrize('size', [6, 49, 70])
def test_inverse_of_another_than_symmetric_matrix(place, size):
    matrix = landmark_matrix(place, size, 1)
    matrix = matrix + torch.rand_like(matrix) / size
    check_inverse(place, matrix, 40, init='transpose')
    check_inverse(place, matrix, 2)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_strided_and_half_precision_matrices(place, dtype):
    memory = torch.full((2, 49, 3, 50), torch.nan, device=place.device)
    matrix = memory.to(dtype)[:, :, 1:, :49].transpose(1, 2)
    matrix.copy_(landmark_matrix(place, 49, 0.3, batch=(2, 2)))
    assert torch.equal(matrix, matrix.mT)
    check_inverse(place, matrix, 18)
    check_inverse(place, matrix.mT, 29, init='transpose')


def test_ridge_and_iterations(place):
    matrix = landmark_matrix(place, 9, 1)
    check_inverse(place, matrix, 20, ridge=0.0)
    check_inverse(place, matrix, 20, ridge=3.0)


def test_converged_matrices_stop(emulator):
    place = Place('cpu', cuda_operators(lambda index: emulator))
    matrix = landmark_matrix(place, 5, 1, batch=(1,))
    results, barriers = [], []
    for num_iters in (3, 20, 1000):
        before = emulator.barriers()
        results.append(
            place.newton_schulz_inverse(matrix, num_iters, 0.01, 'identity')
        )
        barriers.append(emulator.barriers() - before)
    assert barriers[0] < barriers[1] == barriers[2]
    assert torch.equal(results[1], results[2])
    torch.testing.assert_close(
        results[1], torch.linalg.inv(matrix + 0.01 * torch.eye(5))
    )


def test_matrices_do_not_depend_on_each_other(place):
    a, b = landmark_matrix(place, 20, 0.01), landmark_matrix(place, 20, 2)
    b[0, 3, 4] = torch.nan
    both = place.newton_schulz_inverse(torch.cat([a, b]), 18, 0.01, 'identity')
    alone = place.newton_schulz_inverse(a, 18, 0.01, 'identity')
    assert torch.equal(both[:2], alone)
    assert both[2].isnan().all() and both[3].isfinite().all()
    first = place.newton_schulz_inverse(b, 1, 0.01, 'identity')
    assert first[0].isnan().all() and first[1].isfinite().all()


@pytest.mark.parametrize('size', [49, 70])
def test_the_same_bits_of_an_inverse(place, size):
    symmetric = landmark_matrix(place, size, 0.1)
    matrix = torch.cat(
        [symmetric, symmetric + 1e-3 * torch.rand(size).to(place.device)]
    )
    one, other = repeated(
        place,
        lambda: place.newton_schulz_inverse(matrix, 30, 0.01, 'transpose'),
    )
    assert torch.equal(one, other)


def launches_of(emulator, name, arguments):
    emulator.launches.clear()
    result = cuda_operators(lambda index: emulator)[name](*arguments)
    module = inverse_reference if 'newton' in name else reference
    expected = getattr(module, name)(*arguments)
    torch.testing.assert_close(result, expected)
    return len(emulator.launches)


def test_fallbacks(emulator):
    x, y = torch.randn(2, 20, 4), torch.randn(2, 5, 4)
    matrix = torch.eye(128)
    sizes = [
        ('laplacian_kernel', (x, y, 4.0), 1),
        ('laplacian_kernel', (x.double(), y.double(), 4.0), 0),
        ('laplacian_kernel', (x[:, :0], y, 4.0), 0),
        ('laplacian_kernel', (x, y[:, :0], 4.0), 0),
        ('laplacian_kernel', (x[..., :0], y[..., :0], 4.0), 0),
        ('newton_schulz_inverse', (matrix, 9, 0.01, 'identity'), 1),
        ('newton_schulz_inverse', (torch.eye(129), 9, 0.01, 'identity'), 0),
        ('newton_schulz_inverse', (matrix.double(), 9, 0.1, 'identity'), 0),
    ]
    for name, arguments, count in sizes:
        assert launches_of(emulator, name, arguments) == count, arguments
    kernel = reference.laplacian_kernel(x, y, 4.0)
    for grad, count in ((kernel, 2), (kernel.double(), 0)):
        arguments = (grad, x, y, kernel, 4.0)
        assert (
            launches_of(emulator, 'laplacian_kernel_backward', arguments)
            == count
        )
    emulator.max_shared = 99 * 1024
    arguments = (matrix, 9, 0.01, 'identity')
    assert launches_of(emulator, 'newton_schulz_inverse', arguments) == 0
    arguments = (torch.eye(108), 9, 0.01, 'identity')
    assert launches_of(emulator, 'newton_schulz_inverse', arguments) == 1
    emulator.max_shared = 227 * 1024


def test_nothing_beyond_the_tensors_is_touched(emulator):
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, SIMT / 'guarded.py', emulator.folder],
        capture_output=True,
        text=True,
        env=os.environ | dict(PYTHONPATH=str(root)),
    )
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert 'nothing beyond' in result.stdout


def test_emulator_finds_faults(emulator):
    x, y = torch.randn(1, 1, 20, 4), torch.randn(1, 1, 5, 4)
    out = torch.empty(1, 1, 20, 5)
    launch = cuda.launch_forward(x, y, out, 4.0)
    emulator(launch)
    for change in (
        dict(arguments=launch.arguments[:-1]),
        dict(block=2048),
        dict(shared=launch.shared // 2),
    ):
        with pytest.raises(RuntimeError, match='laplacian_forward_float32'):
            emulator(launch._replace(**change))
