"""Checks that only the compiled CPU kernels need."""

import pytest
import torch
from backends import COMPILED, DTYPES, check_kernel


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('d', [1, 7, 8, 9, 16, 32, 64, 512])
@pytest.mark.parametrize('sign', ['any', 'positive'])
def test_close_rows_with_the_largest_sums(compiled_backend, sign, d, dtype):
    # Sums near the limit of sqrt(D) bandwidths, with small distances.
    x = torch.randn(130, d)
    if sign == 'positive':
        x = x.abs()
    x *= 3.9 * d**0.5 / x.abs().sum(-1, keepdim=True)
    y = x[:49] + torch.randn(49, d) * 0.05 / d**0.5
    grad = torch.randn(130, 49)
    check_kernel(compiled_backend, x.to(dtype), y.to(dtype), grad.to(dtype))


def test_large_results_bypass_the_caches_unchanged(compiled_backend):
    # More than 4 MB, rows that end within a cache line, and an odd count.
    x, y = torch.randn(2, 11001, 5) / 4, torch.randn(2, 49, 5) / 4
    kernel = compiled_backend.laplacian_kernel
    whole = kernel(x, y, 4.0)
    parts = [kernel(part, y, 4.0) for part in x.split(1000, 1)]
    assert torch.equal(whole, torch.cat(parts, 1))


def test_mismatched_tensors_of_a_direct_call(compiled_backend):
    with pytest.raises(RuntimeError, match=r'axes and D, got x \('):
        compiled_backend.laplacian_kernel(
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
def test_mismatched_gradients_of_a_direct_call(compiled_backend, grad, kernel):
    with pytest.raises(
        RuntimeError, match=r'expected (grad|kernel) \(\.\.\., N, M\).*got \('
    ):
        compiled_backend.laplacian_kernel_backward(
            grad, torch.ones(9, 3), torch.ones(4, 3), kernel, 4.0
        )


def test_unknown_variant(compiled_backend):
    with pytest.raises(ValueError, match="got 'SSE9'"):
        COMPILED.use_variant('SSE9')
