import pytest
import torch
from helpers import assert_parity, laplacian_broadcast
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_ops import laplacian_kernel
from cuda_ops.laplacian_kernel import reference

SHAPES = [
    ((1, 1), (1, 1)),
    ((7, 3), (5, 3)),
    ((2, 3, 63, 16), (2, 3, 49, 16)),
    ((4, 257, 33), (4, 1, 33)),
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def gradients(function, x, y, grad):
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    out = function(x, y)
    out.backward(grad.to(out.dtype))
    return out.detach(), x.grad, y.grad


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('shapes', SHAPES, ids=str)
def test_values_and_gradients(shapes, dtype, device):
    x, y = (torch.randn(s, device=device).to(dtype) for s in shapes)
    grad = torch.randn(*x.shape[:-1], y.shape[-2], device=device).to(dtype)
    exact = gradients(
        laplacian_broadcast, x.double(), y.double(), grad.double()
    )
    plain = gradients(laplacian_broadcast, x, y, grad)
    fast = gradients(laplacian_kernel, x, y, grad)
    for part in zip(fast, plain, exact, strict=True):
        assert part[0].dtype == dtype
        assert_parity(*part)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 20),
    st.floats(0.05, 50),
)
def test_any_shape_and_bandwidth(n, m, d, bandwidth):
    x, y = torch.randn(n, d).double(), torch.randn(m, d).double()
    torch.testing.assert_close(
        laplacian_kernel(x, y, bandwidth),
        laplacian_broadcast(x, y, bandwidth),
    )


def test_gradcheck():
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(laplacian_kernel, (x, y))


def test_gradient_at_ties_is_zero():
    x = torch.ones(3, 2, requires_grad=True)
    y = torch.ones(4, 2, requires_grad=True)
    laplacian_kernel(x, y).sum().backward()
    assert not x.grad.any() and not y.grad.any()


def test_one_tied_coordinate():
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    y = torch.tensor([[1.0, 0.0]])
    value = laplacian_kernel(x, y, 2.0)
    value.backward()
    expected = torch.tensor([[0.0, -value.item() / 2]])
    torch.testing.assert_close(x.grad, expected)


def test_strided_inputs():
    qkv = torch.randn(2, 50, 3, 4, 8)
    q, k = qkv[:, :, 0].transpose(1, 2), qkv[:, :, 1].transpose(1, 2)
    landmarks = k[:, :, ::7]
    assert not q.is_contiguous()
    torch.testing.assert_close(
        laplacian_kernel(q, landmarks), laplacian_broadcast(q, landmarks)
    )


@pytest.mark.parametrize('shapes', [((0, 3), (4, 3)), ((4, 3), (0, 3))])
def test_empty(shapes):
    x, y = (torch.randn(s, requires_grad=True) for s in shapes)
    out = laplacian_kernel(x, y)
    assert out.shape == (shapes[0][0], shapes[1][0])
    out.sum().backward()
    assert x.grad.shape == x.shape and not x.grad.any()


def test_vectors_without_coordinates():
    x, y = torch.ones(100, 0), torch.ones(50, 0)
    assert laplacian_kernel(x, y).eq(1).all()
    _, grad_x, grad_y = gradients(laplacian_kernel, x, y, torch.ones(100, 50))
    assert grad_x.shape == x.shape and grad_y.shape == y.shape


def test_no_silent_second_gradient():
    x = torch.randn(2, 3, requires_grad=True)
    value = laplacian_kernel(x, torch.randn(4, 3)).sum()
    (grad,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(NotImplementedError, match='second derivatives'):
        grad.sum().backward()


def test_far_pairs_underflow_to_zero():
    x = torch.tensor([[1e4]], requires_grad=True)
    out = laplacian_kernel(x, -x.detach())
    out.backward()
    assert out.item() == 0 and x.grad.item() == 0


def test_memory_is_linear(device):
    # N x M x D values would be 26 GB.
    x = torch.randn(100_000, 64, device=device, requires_grad=True)
    y = torch.randn(1000, 64, device=device, requires_grad=True)
    laplacian_kernel(x, y).sum().backward()
    assert x.grad.shape == x.shape and y.grad.shape == y.shape


def test_gradient_by_parts_is_the_same(monkeypatch):
    x, y = torch.randn(2, 37, 5), torch.randn(2, 11, 5)
    kernel = laplacian_kernel(x, y)
    grad = torch.randn_like(kernel)
    whole = reference.laplacian_kernel_backward(grad, x, y, kernel, 4.0)
    # As on a GPU, three rows at a time.
    monkeypatch.setattr(reference, 'MAX_TRIPLES', 3 * 2 * 11 * 5)
    monkeypatch.setattr(reference, 'DEVICES_WITHOUT_TRIPLES', ())
    parts = reference.laplacian_kernel_backward(grad, x, y, kernel, 4.0)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize(
    'arguments, error, message',
    [
        (([1.0], torch.ones(2, 3)), TypeError, 'x must be a torch.Tensor'),
        ((torch.ones(2, 3).int(), torch.ones(2, 3)), TypeError, 'int32'),
        ((torch.ones(3), torch.ones(2, 3)), ValueError, 'at least 2 axes'),
        (
            (torch.ones(2, 3), torch.ones(2, 3).double()),
            TypeError,
            'float32 and torch.float64',
        ),
        ((torch.ones(2, 3), torch.ones(2, 4)), ValueError, r'\(2, 4\)'),
        (
            (torch.ones(5, 2, 3), torch.ones(4, 2, 3)),
            ValueError,
            'leading axes',
        ),
        (
            (torch.ones(2, 3), torch.ones(2, 3, device='meta')),
            ValueError,
            'meta',
        ),
        ((torch.ones(2, 3), torch.ones(2, 3), 0.0), ValueError, 'got 0.0'),
        (
            (torch.ones(2, 3), torch.ones(2, 3), float('inf')),
            ValueError,
            'finite',
        ),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        laplacian_kernel(*arguments)
