"""The Laplacian kernel: contract of every backend, and the operator."""

import pytest
import torch
from backends import (
    DTYPES,
    REFERENCES,
    check_kernel,
    laplacian_reference,
    near_sample,
    sample,
)
from benchmark_ops import peak_memory
from helpers import assert_parity, laplacian_broadcast
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import cuda_ops
from cuda_ops import laplacian_kernel

OPERATOR = torch.ops.mmlaplacian.laplacian_kernel
BACKWARD = torch.ops.mmlaplacian.laplacian_kernel_backward
#: Leading axes, N, M, D. The sizes are around those of tiles, vectors, blocks,
#: groups of landmarks and slabs of features.
SHAPES = [
    ((), 1, 1, 1),
    ((), 7, 5, 3),
    ((2,), 16, 7, 5),
    ((2,), 130, 7, 5),
    ((2, 1, 2), 9, 9, 8),
    ((1, 3), 47, 48, 16),
    ((1, 3), 129, 48, 16),
    ((2, 3), 63, 49, 16),
    ((2,), 129, 49, 32),
    ((2, 2), 150, 49, 32),
    ((4,), 257, 1, 33),
    ((), 1100, 50, 33),
    ((1, 2), 65, 50, 64),
    ((3,), 97, 64, 64),
    ((1,), 70, 64, 80),
    ((2,), 67, 128, 64),
    ((1,), 66, 129, 32),
    ((), 31, 129, 80),
    ((1,), 33, 49, 200),
]


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('shape', SHAPES, ids=str)
@pytest.mark.parametrize('make', [sample, near_sample])
def test_values_and_gradients(backend, make, shape, dtype):
    if backend.name in REFERENCES and make is sample and shape[-1] > 50:
        pytest.skip('large distances round as much in the dense formula')
    check_kernel(backend, *make(backend, shape, dtype))


@pytest.mark.parametrize('bandwidth', [0.3, 60.0, 1e-40])
def test_bandwidths(backend, bandwidth):
    x, y, grad = sample(backend, ((), 20, 9, 6))
    check_kernel(backend, x, y, 1e-9 * grad, bandwidth)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('grad', ['padded', 'transposed', 'expanded'])
@pytest.mark.parametrize('coordinates', ['contiguous', 'strided', 'reversed'])
def test_strides(backend, coordinates, grad, dtype):
    b, n, h, d = 2, 75, 3, 16
    # Reading anything but q and k gives NaN.
    qkv = torch.full((b, n, 3, h, d), torch.nan)
    qkv[:, :, :2] = torch.randn(b, n, 2, h, d) / 4
    qkv = qkv.to(backend.device, dtype)
    q, k = (qkv[:, :, i].transpose(1, 2) for i in range(2))
    landmarks = k[:, :, 1::3]
    if coordinates == 'strided':
        q = q.mT.contiguous().mT
        columns = landmarks.new_full((b, h, landmarks.shape[2], 2 * d), 9)
        columns[..., ::2] = landmarks
        landmarks = columns[..., ::2]
    if coordinates == 'reversed':
        landmarks = landmarks.flip(-1)
    m = landmarks.shape[2]
    if grad == 'padded':
        memory = torch.full((b, h, n, m + 10), torch.nan)
        memory[..., :m] = torch.randn(b, h, n, m)
        grads = memory.to(backend.device, dtype)[..., :m]
    elif grad == 'transposed':
        grads = torch.randn(b, h, m, n).to(backend.device, dtype).mT
    else:
        grads = torch.randn(1, 1, 1, m).to(backend.device, dtype)
        grads = grads.expand(b, h, n, m)
    check_kernel(backend, q, landmarks, grads)


def test_column_major_inputs_and_one_gradient_for_all(backend):
    x = torch.randn(2, 40, 70, device=backend.device).mT
    y = torch.randn(2, 40, 30, device=backend.device)[..., ::2].mT
    one = torch.ones((), device=backend.device)
    check_kernel(backend, x, y, one.expand(2, 70, 15))


def test_offsets_beyond_32_bits(backend):
    # 4 GiB of address space, of which two pages are touched.
    row = 2**31 - 64
    try:
        memory = torch.empty(
            row + 128, dtype=torch.float16, device=backend.device
        )
    except RuntimeError as error:
        pytest.skip(f'4 GiB cannot be allocated: {error}')
    x = memory.as_strided((2, 64), (row + 64, 1))
    x.copy_(torch.randn(2, 64))
    _, y, grad = sample(backend, ((), 2, 5, 64), torch.float16)
    check_kernel(backend, x, y, grad)


def test_more_matrices_than_a_grid_axis(backend):
    x, y, _ = sample(backend, ((65_537,), 1, 1, 1))
    kernel = backend.laplacian_kernel(x, y, 4.0)
    torch.testing.assert_close(kernel, laplacian_broadcast(x, y))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('size', [(40, 5, 3), (70, 49, 40), (70, 64, 40)])
def test_gradient_at_ties_is_exactly_zero(backend, size, dtype):
    n, m, d = size
    x = torch.full((2, n, d), 0.3, device=backend.device, dtype=dtype)
    y = torch.full((2, m, d), 0.3, device=backend.device, dtype=dtype)
    # Zeros of either sign are ties, too.
    x[..., 0], y[..., 0] = 0.0, -0.0
    grad = torch.randn(2, n, m).to(backend.device, dtype)
    kernel, grad_x, grad_y = check_kernel(backend, x, y, grad)
    assert (kernel == 1).all()
    assert not grad_x.any() and not grad_y.any()


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_many_ties(backend, dtype):
    x, y, grad = sample(backend, ((2,), 90, 49, 33), dtype)
    check_kernel(backend, (2 * x).round() / 2, (2 * y).round() / 2, grad)


def test_one_tied_coordinate(backend):
    x = torch.tensor([[1.0, 2.0]], device=backend.device)
    y = torch.tensor([[1.0, 0.0]], device=backend.device)
    kernel = backend.laplacian_kernel(x, y, 2.0)
    grad_x, _ = backend.laplacian_kernel_backward(
        torch.ones_like(kernel), x, y, kernel, 2.0
    )
    expected = torch.tensor([[0.0, -kernel.item() / 2]])
    torch.testing.assert_close(grad_x.cpu(), expected)


@pytest.mark.parametrize('m', [49, 64])
def test_equal_landmarks(backend, m):
    x, y, grad = near_sample(backend, ((2,), 130, m, 32))
    check_kernel(backend, x, y[:, :1].expand_as(y), grad)
    x, y, grad = sample(backend, ((2,), 80, m, 32))
    check_kernel(backend, x, y[:, :1].expand_as(y), grad)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('m', [49, 64])
def test_same_bits_in_every_order_of_the_work(backend, m, dtype):
    # On CPUs, these tokens are enough for several threads.
    n = 300 if backend.emulator else 2500
    x, y, grad = sample(backend, ((3,), n, m, 40), dtype)

    def run():
        kernel = backend.laplacian_kernel(x, y, 4.0)
        return kernel, *backend.laplacian_kernel_backward(
            grad, x, y, kernel, 4.0
        )

    first, *others = backend.run_in_every_order(run)
    for result in others:
        assert all(map(torch.equal, result, first))


def test_values_depend_on_their_own_token_only(backend):
    x, y, _ = near_sample(backend, ((), 100, 49, 32))
    x[::7] *= 1000
    together = backend.laplacian_kernel(x, y, 4.0)
    for i in range(100):
        alone = backend.laplacian_kernel(x[i, None], y, 4.0)
        assert torch.equal(together[i : i + 1], alone)


def test_images_do_not_depend_on_each_other(backend):
    x, y, _ = near_sample(backend, ((4,), 333, 49, 32))
    kernel = backend.laplacian_kernel(x, y, 4.0)
    alone = backend.laplacian_kernel(x[2:3], y[2:3], 4.0)
    assert torch.equal(kernel[2:3], alone)


@pytest.mark.parametrize(
    'shape',
    [((), 0, 4, 3), ((), 4, 0, 3), ((0,), 4, 5, 3), ((), 100, 50, 0)],
    ids=str,
)
def test_empty_tensors(backend, shape):
    x, y, grad = sample(backend, shape)
    kernel = backend.laplacian_kernel(x, y, 4.0)
    assert kernel.shape == grad.shape and kernel.eq(1).all()
    grads = backend.laplacian_kernel_backward(grad, x, y, kernel, 4.0)
    for part, source in zip(grads, (x, y), strict=True):
        assert part.shape == source.shape and not part.any()


def test_memory_is_linear_in_the_dimension(backend):
    if backend.emulator:
        pytest.skip('the emulation allocates as the kernels on CUDA do')
    # N x M x D values would be 1.3 GB.
    x, y, grad = sample(backend, ((), 20_000, 250, 64))

    def run():
        kernel = backend.laplacian_kernel(x, y, 4.0)
        return kernel, *backend.laplacian_kernel_backward(
            grad, x, y, kernel, 4.0
        )

    peak = peak_memory(run, backend.device)
    if peak is None:
        pytest.skip('peak memory cannot be measured on this system')
    assert peak < 200e6


def gradients(function, x, y, grad):
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    out = function(x, y)
    out.backward(grad.to(out.dtype))
    return out.detach(), x.grad, y.grad


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(
    'shape',
    [
        ((), 1, 1, 1),
        ((), 7, 5, 3),
        ((2, 3), 63, 49, 16),
        ((4,), 257, 1, 33),
        ((), 0, 4, 3),
        ((), 4, 0, 3),
    ],
    ids=str,
)
def test_autograd(shape, dtype, device):
    leading, n, m, d = shape
    x, y, grad = (
        torch.randn(*leading, *axes).to(device, dtype)
        for axes in ((n, d), (m, d), (n, m))
    )
    exact = gradients(
        laplacian_broadcast, x.double(), y.double(), grad.double()
    )
    plain = gradients(laplacian_broadcast, x, y, grad)
    fast = gradients(laplacian_kernel, x, y, grad)
    for parts in zip(fast, plain, exact, strict=True):
        assert parts[0].dtype == dtype
        if parts[0].numel() == 0:
            assert parts[0].shape == parts[2].shape
        else:
            assert_parity(*parts)


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


def test_second_derivatives_are_refused():
    x = torch.randn(2, 3, requires_grad=True)
    value = laplacian_kernel(x, torch.randn(4, 3)).sum()
    (grad,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(NotImplementedError, match='second derivatives'):
        grad.sum().backward()


def test_reference_gradient_in_parts(monkeypatch):
    x, y = torch.randn(2, 37, 5), torch.randn(2, 11, 5)
    kernel = laplacian_kernel(x, y)
    grad = torch.randn_like(kernel)
    backward = laplacian_reference.laplacian_kernel_backward
    whole = backward(grad, x, y, kernel, 4.0)
    # The gradient is computed for three rows at a time, as on a GPU.
    monkeypatch.setattr(laplacian_reference, 'MAX_TRIPLES', 3 * 2 * 11 * 5)
    monkeypatch.setattr(laplacian_reference, 'DEVICES_WITHOUT_TRIPLES', ())
    parts = backward(grad, x, y, kernel, 4.0)
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


@pytest.mark.parametrize('requires_grad', [True, False])
def test_opcheck(requires_grad):
    x = torch.randn(2, 9, 5, requires_grad=requires_grad)
    y = torch.randn(2, 4, 5, requires_grad=requires_grad)
    torch.library.opcheck(OPERATOR.default, (x, y, 4.0))


def test_opcheck_of_the_gradient():
    x, y = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    kernel = torch.rand(2, 9, 4)
    torch.library.opcheck(BACKWARD.default, (kernel, x, y, kernel, 4.0))


def test_flop_formula():
    x, y = torch.randn(2, 9, 5, requires_grad=True), torch.randn(2, 4, 5)
    with FlopCounterMode(display=False) as counter:
        OPERATOR(x, y, 4.0).sum().backward()
    counts = counter.get_flop_counts()['Global']
    assert counts[OPERATOR] == 2 * 2 * 9 * 4 * 5
    assert counts[BACKWARD] == 2 * 2 * 2 * 9 * 4 * 5


def test_decomposition():
    class Module(torch.nn.Module):
        def forward(self, x, y):
            kernel = laplacian_kernel(x, y)
            return kernel, BACKWARD(kernel, x, y, kernel, 4.0)

    inputs = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    program = torch.export.export(Module(), inputs)
    assert str(program.graph).count('mmlaplacian') > 1
    table = torch.export.default_decompositions()
    standard = program.run_decompositions(
        {**table, **cuda_ops.decompositions()}
    )
    assert 'mmlaplacian' not in str(standard.graph)
    torch.testing.assert_close(standard.module()(*inputs), Module()(*inputs))
