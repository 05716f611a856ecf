"""The compiled CPU kernels against the reference."""

import pytest
import torch
from helpers import assert_parity

from cuda_ops import COMPILED, laplacian_kernel
from cuda_ops.common.compiled import VARIANTS
from cuda_ops.laplacian_kernel import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
#: Leading axes, N, M, D: one of everything, tails of tiles, vectors, blocks.
SIZES = [
    ((), 1, 1, 1),
    ((2,), 16, 7, 5),
    ((1, 3), 47, 48, 16),
    ((2,), 129, 49, 32),
    ((), 1100, 50, 33),
    ((3,), 97, 64, 64),
    ((), 31, 129, 80),
]


@pytest.fixture(params=VARIANTS)
def variant(request, pytestconfig):
    """Every instruction set that this processor has."""
    if COMPILED.trouble:
        if pytestconfig.getoption('--require-compiled'):
            pytest.fail(f'--require-compiled: {COMPILED.trouble}')
        pytest.skip(COMPILED.trouble)
    try:
        COMPILED.use_variant(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    yield request.param
    COMPILED.use_variant()


def inputs(leading, n, m, d, dtype):
    """Tokens, landmarks of which two are tokens, and a gradient."""
    x = torch.randn(*leading, n, d) / 4
    y = torch.randn(*leading, m, d) / 4
    y[..., 0, :] = x[..., 0, :]
    y[..., -1, :] = x[..., -1, :]
    x[..., n // 2, 0] = y[..., m // 2, 0]
    grad = torch.randn(*leading, n, m)
    return x.to(dtype), y.to(dtype), grad.to(dtype)


def compare(ours, plain, exact):
    if ours.dtype == torch.float64:
        # Here the exact form rounds as much as ours.
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)
    else:
        assert_parity(ours, plain, exact)


def check(x, y, grad, bandwidth=4.0):
    """Values and both gradients, against float64 and the plain reference."""
    kernel = torch.ops.mmlaplacian.laplacian_kernel(x, y, bandwidth)
    ours = torch.ops.mmlaplacian.laplacian_kernel_backward(
        grad, x, y, kernel, bandwidth
    )
    plain = reference.laplacian_kernel(x, y, bandwidth)
    exact = reference.laplacian_kernel(x.double(), y.double(), bandwidth)
    compare(kernel, plain, exact)
    plains = reference.laplacian_kernel_backward(grad, x, y, kernel, bandwidth)
    exacts = reference.laplacian_kernel_backward(
        grad.double(), x.double(), y.double(), kernel.double(), bandwidth
    )
    for part in zip(ours, plains, exacts, strict=True):
        assert part[0].dtype == x.dtype and part[0].is_contiguous()
        compare(*part)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('size', SIZES, ids=str)
def test_parity(variant, size, dtype):
    check(*inputs(*size, dtype))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_strided_inputs_are_read_in_place(variant, dtype):
    qkv = (torch.randn(2, 75, 3, 4, 16) / 4).to(dtype)
    q, k = qkv[:, :, 0].transpose(1, 2), qkv[:, :, 1].transpose(1, 2)
    landmarks = k[:, :, ::3]
    transposed = torch.randn(2, 4, 25, 75).to(dtype).mT
    expanded = torch.randn(1, 1, 1, 25).to(dtype).expand(2, 4, 75, 25)
    for grad in (transposed, expanded):
        check(q, landmarks, grad)
    # Coordinates that are not neighbours.
    check(q.mT.contiguous().mT, landmarks.flip(-1), transposed)


def test_all_landmarks_equal(variant):
    x, y, grad = inputs((2,), 130, 49, 32, torch.float32)
    check(x, y[:, :1].expand_as(y), grad)


def test_ties_have_no_gradient(variant):
    x = torch.ones(40, 3)
    kernel = torch.ones(40, 5)
    parts = torch.ops.mmlaplacian.laplacian_kernel_backward(
        kernel, x, torch.ones(5, 3), kernel, 4.0
    )
    assert not any(part.any() for part in parts)


@pytest.mark.parametrize('size', [1e-3, 0.5, 1.0, 5.0, 1e3])
def test_equal_and_almost_equal_rows(variant, size):
    # Distances are differences of sums: none may be below 0.
    x = torch.randn(200, 32) * size
    y = x[:49].clone()
    x[100:149] = y.nextafter(torch.tensor(torch.inf))
    kernel = laplacian_kernel(x, y)
    assert kernel.max() == 1
    assert (kernel[:49].diag() == 1).all()


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('d', [1, 7, 8, 9, 16, 32, 64, 512])
@pytest.mark.parametrize('sign', ['any', 'positive'])
def test_close_rows_as_large_as_are_summed(variant, sign, d, dtype):
    # Sums of sizes near the limit of sqrt(D) bandwidths, small distances.
    x = torch.randn(130, d)
    if sign == 'positive':
        x = x.abs()
    x *= 3.9 * d**0.5 / x.abs().sum(-1, keepdim=True)
    y = x[:49] + torch.randn(49, d) * 0.05 / d**0.5
    check(x.to(dtype), y.to(dtype), torch.randn(130, 49).to(dtype))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('which', ['tokens', 'landmarks', 'both'])
def test_large_rows_keep_their_precision(variant, which, dtype):
    # Their sums would round by more than their distances.
    x, y, grad = inputs((2,), 130, 49, 32, dtype)
    if which != 'landmarks':
        x[:, ::3] += 100
    if which != 'tokens':
        y[:, ::3] += 100
    check(x, y, grad)


def test_a_value_depends_on_its_own_token_alone(variant):
    x, y, _ = inputs((), 100, 49, 32, torch.float32)
    x[::7] *= 1000
    together = laplacian_kernel(x, y)
    for i in range(100):
        assert torch.equal(
            together[i : i + 1], laplacian_kernel(x[i, None], y)
        )


@pytest.mark.parametrize('bandwidth', [1e-42, 1e-3, 1e30])
def test_extreme_bandwidths(variant, bandwidth):
    x, y, _ = inputs((), 33, 9, 4, torch.float32)
    ours = laplacian_kernel(x, y, bandwidth)
    torch.testing.assert_close(
        ours, reference.laplacian_kernel(x, y, bandwidth), atol=2e-38, rtol=0
    )
    assert ours[0, 0] == 1


def test_values_that_are_not_finite(variant):
    x, y, _ = inputs((), 20, 9, 4, torch.float32)
    x[3, 1], x[4, 2] = float('nan'), float('inf')
    ours = laplacian_kernel(x, y)
    assert ours[3].isnan().all() and not ours[4].any()
    rest = torch.ones(20, dtype=torch.bool)
    rest[3:5] = False
    assert torch.equal(ours[rest], laplacian_kernel(x[rest], y))


@pytest.mark.parametrize('bad', ['nan', 'inf', '-inf'])
def test_landmarks_that_are_not_finite(variant, bad):
    x, y, _ = inputs((), 100, 9, 4, torch.float32)
    y[3, 1] = float(bad)
    ours = laplacian_kernel(x, y)
    plain = reference.laplacian_kernel(x, y, 4.0)
    torch.testing.assert_close(ours, plain, equal_nan=True)


def test_the_largest_numbers_do_not_overflow(variant):
    x = torch.tensor([[2.38e38, 0.68e38]]).expand(50, 2)
    y = x.flip(-1)[:9]
    torch.testing.assert_close(
        laplacian_kernel(x, y, 1e38), reference.laplacian_kernel(x, y, 1e38)
    )


@pytest.mark.parametrize('which', ['tokens', 'landmarks', 'both'])
@pytest.mark.parametrize(
    'dtype, power',
    [(torch.float32, power) for power in (0, -40, -41, -42, -64, -149)]
    + [(torch.float64, power) for power in (0, -459, -460, -461, -512, -1074)],
    ids=str,
)
def test_signs_of_the_smallest_differences(variant, power, which, dtype):
    # Numbers of one size, one unit of rounding apart, zeros, and ties of all.
    size = torch.tensor(2.0**power, dtype=dtype)
    pool = torch.stack([size, size.nextafter(2 * size), 0 * size, 2 * size])
    pool = torch.cat([pool, -pool])
    x, y = pool[torch.randint(8, (70, 33))], pool[torch.randint(8, (49, 33))]
    if which == 'tokens':
        y = y.sign() + (y == 0)
    if which == 'landmarks':
        x = x.sign() + (x == 0)
    grad, kernel = torch.randn(2, 70, 49, dtype=dtype)
    ours = torch.ops.mmlaplacian.laplacian_kernel_backward(
        grad, x, y, kernel, 4.0
    )
    exact = reference.laplacian_kernel_backward(
        grad.double(), x.double(), y.double(), kernel.double(), 4.0
    )
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=0, atol=64 * torch.finfo(dtype).eps
        )


@pytest.mark.parametrize('which', ['tokens', 'landmarks'])
@pytest.mark.parametrize(
    'dtype', [torch.float32, torch.bfloat16, torch.float64], ids=str
)
def test_gradients_have_the_same_bits_beside_a_tiny_number(
    variant, dtype, which
):
    x, y, grad = inputs((2,), 100, 49, 32, dtype)
    some, others = (x, y) if which == 'tokens' else (y, x)
    others[..., 0] = others[..., 0].abs() + 0.1
    kernel = laplacian_kernel(x, y)
    parts = []
    for size in (1e-3, 1e-20 if dtype != torch.float64 else 1e-150):
        some[:, ::32, 0] = size
        parts.append(
            torch.ops.mmlaplacian.laplacian_kernel_backward(
                grad, x, y, kernel, 4.0
            )
        )
    assert all(map(torch.equal, *parts))


@pytest.mark.parametrize(
    'size, bandwidth',
    [(1e-30, 1e-3), (1, 1e30), (1e8, 1e-3), (1, 1e-30), (1e10, 1e-20)],
)
def test_gradients_of_extreme_weights(variant, size, bandwidth):
    x, y, grad = inputs((), 50, 9, 4, torch.float32)
    grad *= size
    kernel = torch.full_like(grad, 0.5)
    parts = [
        function(grad, x, y, kernel, bandwidth)
        for function in (
            torch.ops.mmlaplacian.laplacian_kernel_backward,
            reference.laplacian_kernel_backward,
        )
    ]
    for ours, plain in zip(*parts, strict=True):
        largest = plain.abs().max().item()
        assert 0 < largest < float('inf')
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6 * largest)


@pytest.mark.parametrize('bad', ['nan', 'inf', '-inf'])
def test_gradients_that_are_not_finite(variant, bad):
    x, y, grad = inputs((), 100, 9, 4, torch.float32)
    x[40, 0] = y[3, 0]
    kernel = laplacian_kernel(x, y)
    whole = torch.ops.mmlaplacian.laplacian_kernel_backward(
        grad, x, y, kernel, 4.0
    )
    grad[40, 3] = float(bad)
    ours = torch.ops.mmlaplacian.laplacian_kernel_backward(
        grad, x, y, kernel, 4.0
    )
    # A tie has the gradient 0 even then.
    assert ours[0][40].isfinite().tolist() == [True, False, False, False]
    assert ours[1][3].isfinite().tolist() == [True, False, False, False]
    for part, row, before in zip(ours, (40, 3), whole, strict=True):
        rest = torch.arange(len(part)) != row
        assert torch.equal(part[rest], before[rest])


def test_the_same_bits_on_any_number_of_threads(variant):
    x, y, grad = inputs((3,), 2500, 49, 32, torch.float32)
    kernel = laplacian_kernel(x, y)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            backward = torch.ops.mmlaplacian.laplacian_kernel_backward
            results.append(
                [laplacian_kernel(x, y), *backward(grad, x, y, kernel, 4.0)]
            )
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_one_image_does_not_depend_on_its_batch_mates(variant):
    x, y, _ = inputs((4,), 333, 49, 32, torch.float32)
    whole = laplacian_kernel(x, y)
    assert torch.equal(whole[2:3], laplacian_kernel(x[2:3], y[2:3]))


def test_mismatched_tensors_of_a_direct_call(variant):
    with pytest.raises(RuntimeError, match=r'axes and D, got x \('):
        torch.ops.mmlaplacian.laplacian_kernel(
            torch.ones(2, 3), torch.ones(2, 4), 4.0
        )


@pytest.mark.parametrize(
    'grad, kernel',
    [
        (torch.ones(9, 4), torch.ones(2, 4)),
        (torch.ones(9, 3), torch.ones(9, 4)),
        (torch.ones(9, 4), torch.ones(9, 4).half()),
        (torch.ones(()), torch.ones(9, 4)),
    ],
    ids=['kernel rows', 'grad columns', 'dtypes', 'no axes'],
)
def test_mismatched_pairs_of_a_direct_call(variant, grad, kernel):
    with pytest.raises(
        RuntimeError, match=r'expected (grad|kernel) \(\.\.\., N, M\).*got \('
    ):
        torch.ops.mmlaplacian.laplacian_kernel_backward(
            grad, torch.ones(9, 3), torch.ones(4, 3), kernel, 4.0
        )


def test_large_results_go_past_the_caches_unchanged(variant):
    # More than 4 MB, rows that end within a cache line, and an odd count.
    x, y, _ = inputs((2,), 11001, 49, 5, torch.float32)
    whole = laplacian_kernel(x, y)
    parts = [laplacian_kernel(part, y) for part in x.split(1000, 1)]
    assert torch.equal(whole, torch.cat(parts, 1))


def test_an_unknown_variant(variant):
    with pytest.raises(ValueError, match="got 'SSE9'"):
        COMPILED.use_variant('SSE9')
