"""The Laplacian kernel of extreme and non-finite values, on every backend."""

import pytest
import torch
from backends import (
    CUDA_BACKENDS,
    DTYPES,
    REFERENCES,
    VARIANTS,
    check_kernel,
    laplacian_reference,
    near_sample,
    sample,
)
from helpers import laplacian_broadcast, laplacian_broadcast_backward


@pytest.mark.parametrize('bandwidth', [1e-42, 1e-3, 1e30])
def test_extreme_bandwidths(backend, bandwidth):
    x, y, _ = near_sample(backend, ((), 33, 9, 4))
    kernel = backend.laplacian_kernel(x, y, bandwidth)
    expected = laplacian_reference.laplacian_kernel(x, y, bandwidth)
    if backend.name in REFERENCES:
        expected = laplacian_broadcast(x, y, bandwidth)
    torch.testing.assert_close(kernel, expected, atol=2e-38, rtol=0)
    assert kernel[0, 0] == 1


@pytest.mark.parametrize('scale', [1e-3, 0.5, 1.0, 5.0, 1e3])
def test_equal_and_almost_equal_rows(backend, scale):
    # Distances are differences of sums, and must not be negative.
    x = torch.randn(200, 32) * scale
    y = x[:49].clone()
    x[100:149] = y.nextafter(torch.tensor(torch.inf))
    x, y = x.to(backend.device), y.to(backend.device)
    kernel = backend.laplacian_kernel(x, y, 4.0)
    assert kernel.max() == 1
    assert (kernel[:49].diag() == 1).all()


def test_differences_of_one_bit(backend):
    x, y, grad = sample(backend, ((), 64, 49, 16))
    y = x[:49].nextafter(torch.full_like(y, torch.inf))
    check_kernel(backend, x, y, grad)
    # The smallest normal numbers, and ties among them.
    tiny = torch.finfo(torch.float32).tiny
    x, y = x.round() * tiny, y.round() * tiny
    check_kernel(backend, x, y, 1e-9 * grad * tiny, bandwidth=tiny)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('far', ['tokens', 'landmarks', 'both'])
def test_rows_far_from_the_origin(backend, far, dtype):
    # Sums of their coordinates would round by more than their distances.
    x, y, grad = near_sample(backend, ((2,), 130, 49, 32), dtype)
    if far != 'landmarks':
        x[:, ::3] += 100
    if far != 'tokens':
        y[:, ::3] += 100
    check_kernel(backend, x, y, grad)


@pytest.mark.parametrize('large', ['landmarks', 'tokens', 'neither'])
@pytest.mark.parametrize(
    'dtype, power',
    [(torch.float32, power) for power in (0, -40, -41, -42, -64, -149)]
    + [(torch.float64, power) for power in (0, -459, -460, -461, -512, -1074)],
    ids=str,
)
def test_signs_of_the_smallest_differences(backend, power, large, dtype):
    if backend.name in CUDA_BACKENDS and power == -149:
        pytest.skip('CUDA kernels need differences above 2^-129 for signs')
    # Numbers of one size, one unit of rounding apart, zeros, and ties of all.
    size = torch.tensor(2.0**power, dtype=dtype)
    pool = torch.stack([size, size.nextafter(2 * size), 0 * size, 2 * size])
    pool = torch.cat([pool, -pool])
    x, y = pool[torch.randint(8, (70, 33))], pool[torch.randint(8, (49, 33))]
    if large == 'landmarks':
        y = y.sign() + (y == 0)
    if large == 'tokens':
        x = x.sign() + (x == 0)
    grad, kernel = torch.randn(2, 70, 49, dtype=dtype)
    arguments = [t.to(backend.device) for t in (grad, x, y, kernel)]
    grads = backend.laplacian_kernel_backward(*arguments, 4.0)
    exact = laplacian_broadcast_backward(*(t.double() for t in arguments), 4.0)
    for found, expected in zip(grads, exact, strict=True):
        torch.testing.assert_close(
            found.double(), expected, rtol=0, atol=64 * torch.finfo(dtype).eps
        )


@pytest.mark.parametrize('side', ['tokens', 'landmarks'])
@pytest.mark.parametrize(
    'dtype', [torch.float32, torch.bfloat16, torch.float64], ids=str
)
def test_tiny_numbers_leave_the_bits_of_gradients(backend, dtype, side):
    x, y, grad = near_sample(backend, ((2,), 100, 49, 32), dtype)
    changed, kept = (x, y) if side == 'tokens' else (y, x)
    kept[..., 0] = kept[..., 0].abs() + 0.1
    kernel = backend.laplacian_kernel(x, y, 4.0)
    grads = []
    for size in (1e-3, 1e-20 if dtype != torch.float64 else 1e-150):
        changed[:, ::32, 0] = size
        grads.append(
            backend.laplacian_kernel_backward(grad, x, y, kernel, 4.0)
        )
    assert all(map(torch.equal, *grads))


@pytest.mark.parametrize(
    'size, bandwidth',
    [(1e-30, 1e-3), (1, 1e30), (1e8, 1e-3), (1, 1e-30), (1e10, 1e-20)],
)
def test_gradients_of_extreme_weights(backend, size, bandwidth):
    x, y, grad = near_sample(backend, ((), 50, 9, 4))
    grad *= size
    kernel = torch.full_like(grad, 0.5)
    arguments = (grad, x, y, kernel)
    grads = backend.laplacian_kernel_backward(*arguments, bandwidth)
    exact = laplacian_broadcast_backward(
        *(t.double() for t in arguments), bandwidth
    )
    for found, expected in zip(grads, exact, strict=True):
        largest = expected.abs().max().item()
        assert 0 < largest < torch.finfo(torch.float32).max
        torch.testing.assert_close(
            found.double(), expected, rtol=0, atol=1e-6 * largest
        )


def test_tokens_with_non_finite_values(backend):
    x, y, _ = sample(backend, ((), 30, 9, 4))
    x[3, 1], x[4, 2] = torch.nan, torch.inf
    kernel = backend.laplacian_kernel(x, y, 4.0)
    assert kernel[3].isnan().all() and not kernel[4].any()
    finite = x.isfinite().all(-1)
    assert torch.equal(
        kernel[finite], backend.laplacian_kernel(x[finite], y, 4.0)
    )
    y[7, 0] = -torch.inf
    kernel = backend.laplacian_kernel(x, y, 4.0)
    expected = laplacian_broadcast(x, y)
    torch.testing.assert_close(kernel, expected, equal_nan=True)


@pytest.mark.parametrize('bad', ['nan', 'inf', '-inf'])
def test_landmarks_with_non_finite_values(backend, bad):
    x, y, _ = near_sample(backend, ((), 100, 9, 4))
    y[3, 1] = float(bad)
    kernel = backend.laplacian_kernel(x, y, 4.0)
    expected = laplacian_broadcast(x, y)
    torch.testing.assert_close(kernel, expected, equal_nan=True)


@pytest.mark.parametrize('bad', ['nan', 'inf', '-inf'])
def test_non_finite_gradients_stay_in_their_rows(backend, bad):
    x, y, grad = near_sample(backend, ((), 100, 9, 4))
    x[40, 0] = y[3, 0]
    kernel = backend.laplacian_kernel(x, y, 4.0)
    before = backend.laplacian_kernel_backward(grad, x, y, kernel, 4.0)
    grad[40, 3] = float(bad)
    grads = backend.laplacian_kernel_backward(grad, x, y, kernel, 4.0)
    for part, row, whole in zip(grads, (40, 3), before, strict=True):
        finite = part[row].isfinite().tolist()
        assert finite[1:] == [False, False, False]
        # The compiled kernels keep a tie's gradient at 0 even then.
        assert finite[0] == (backend.name in VARIANTS)
        others = torch.arange(len(part)) != row
        assert torch.equal(part[others], whole[others])


def test_the_largest_numbers_do_not_overflow(backend):
    x = torch.tensor([[2.38e38, 0.68e38]], device=backend.device).expand(50, 2)
    y = x.flip(-1)[:9]
    torch.testing.assert_close(
        backend.laplacian_kernel(x, y, 1e38),
        laplacian_broadcast(x.double(), y.double(), 1e38).float(),
    )


def test_far_pairs_underflow_to_zero(backend):
    x = torch.tensor([[1e4]], device=backend.device)
    kernel = backend.laplacian_kernel(x, -x, 4.0)
    grads = backend.laplacian_kernel_backward(
        torch.ones_like(kernel), x, -x, kernel, 4.0
    )
    assert [part.item() for part in (kernel, *grads)] == [0, 0, 0]
