"""The Newton-Schulz inverse: contract of every backend, and the operator."""

import pytest
import torch
from backends import (
    CUDA_BACKENDS,
    DTYPES,
    VARIANTS,
    check_inverse,
)
from helpers import laplacian_broadcast
from torch.utils.flop_counter import FlopCounterMode

import cuda_ops
from cuda_ops import newton_schulz_inverse
from cuda_ops.newton_schulz import INITS, default_num_iters

OPERATOR = torch.ops.mmlaplacian.newton_schulz_inverse


def landmark_matrix(size, spread, batch=(), dtype=torch.float32):
    """Kernel matrix of random landmarks; a spread of 0 makes them equal."""
    points = spread * torch.randn(*batch, size, 8, dtype=dtype)
    return laplacian_broadcast(points, points)


def residual(matrix, inverse, ridge=0.01):
    matrix, inverse = matrix.double().cpu(), inverse.double().cpu()
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    return (identity - (matrix + ridge * identity) @ inverse).abs().max()


@pytest.mark.parametrize(
    'init, num_iters', [('identity', 18), ('transpose', 29)]
)
@pytest.mark.parametrize('size', [1, 3, 7, 48, 49, 50, 64, 65, 128])
@pytest.mark.parametrize('spread', [0, 0.1, 1])
def test_values(backend, size, spread, init, num_iters):
    if spread == 0 and backend.name in VARIANTS:
        pytest.skip('rounding decides; the residual is tested instead')
    matrix = landmark_matrix(size, spread, batch=(1,)).to(backend.device)
    inverse = check_inverse(backend, matrix, num_iters, init=init)
    if backend.name in CUDA_BACKENDS:
        assert torch.equal(inverse, inverse.mT)


@pytest.mark.parametrize('init', INITS)
@pytest.mark.parametrize('num_iters', [1, 3, 7])
def test_unfinished_inverse(backend, num_iters, init):
    matrix = landmark_matrix(49, 0.2, batch=(2,)).to(backend.device)
    check_inverse(backend, matrix, num_iters, init=init)


@pytest.mark.parametrize('size', [6, 49, 70])
def test_matrices_that_are_not_symmetric(backend, size):
    matrix = landmark_matrix(size, 1, batch=(2,)).to(backend.device)
    matrix = matrix + torch.rand_like(matrix) / size
    check_inverse(backend, matrix, 40, init='transpose')
    check_inverse(backend, matrix, 2)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_strides_and_dtypes(backend, dtype):
    memory = torch.full((2, 49, 3, 50), torch.nan, device=backend.device)
    matrix = memory.to(dtype)[:, :, 1:, :49].transpose(1, 2)
    matrix.copy_(landmark_matrix(49, 0.3, batch=(2, 2)))
    assert torch.equal(matrix, matrix.mT)
    check_inverse(backend, matrix, 18)
    check_inverse(backend, matrix.mT, 29, init='transpose')


@pytest.mark.parametrize('ridge', [0.0, 3.0])
def test_ridges(backend, ridge):
    matrix = landmark_matrix(9, 1, batch=(2,)).to(backend.device)
    check_inverse(backend, matrix, 20, ridge=ridge)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('init', INITS)
@pytest.mark.parametrize('size', [1, 4, 48, 49, 64, 128, 129, 256])
@pytest.mark.parametrize('spread', [0, 0.01, 0.1, 1])
def test_default_count_reaches_the_residual(
    backend, size, spread, init, dtype
):
    if dtype == torch.float32 and (
        init == 'transpose' or backend.name in CUDA_BACKENDS
    ):
        pytest.skip('float32 rounds too much for the residual')
    matrix = landmark_matrix(size, spread, dtype=dtype).to(backend.device)
    count = default_num_iters(size, 0.01, init)
    inverse = backend.newton_schulz_inverse(matrix, count, 0.01, init)
    assert inverse.dtype == dtype
    assert residual(matrix, inverse) < 1e-3


def test_one_iteration_less_is_not_enough(backend):
    # Equal landmarks give the worst matrix of the bound.
    matrix = torch.ones(49, 49, dtype=torch.float64, device=backend.device)
    count = default_num_iters(49, 0.01) - 1
    inverse = backend.newton_schulz_inverse(matrix, count, 0.01, 'identity')
    assert residual(matrix, inverse) > 1e-3


@pytest.mark.parametrize('init', INITS)
def test_against_linalg(backend, init):
    matrix = landmark_matrix(49, 1, batch=(2, 3), dtype=torch.float64)
    identity = torch.eye(49, dtype=matrix.dtype)
    inverse = backend.newton_schulz_inverse(
        matrix.to(backend.device), 40, 0.01, init
    )
    expected = torch.linalg.inv(matrix + 0.01 * identity)
    torch.testing.assert_close(inverse.cpu(), expected)


def test_transpose_start_needs_no_symmetry(backend):
    matrix = landmark_matrix(6, 1, dtype=torch.float64).to(backend.device)
    matrix = matrix + 0.1 * torch.randn_like(matrix)
    inverse = backend.newton_schulz_inverse(matrix, 40, 0.01, 'transpose')
    assert residual(matrix, inverse) < 1e-9


@pytest.mark.parametrize('size', [20, 49])
def test_matrices_do_not_depend_on_each_other(backend, size):
    a, b, c = (
        landmark_matrix(size, spread, batch=(2,)).to(backend.device)
        for spread in (0.01, 2, 9)
    )
    b[0, 3, 4] = torch.nan

    def invert(*matrices, num_iters=18):
        return backend.newton_schulz_inverse(
            torch.cat(matrices), num_iters, 0.01, 'identity'
        )

    with_b, with_c = invert(a, b), invert(a, 100 * c)
    assert torch.equal(with_b[:2], with_c[:2])
    assert torch.equal(with_b[:2], invert(a))
    assert with_b[2].isnan().all() and with_b[3].isfinite().all()
    first = invert(b, num_iters=1)
    assert first[0].isnan().all() and first[1].isfinite().all()


@pytest.mark.parametrize('size', [49, 70])
def test_same_bits_in_every_order_of_the_work(backend, size):
    symmetric = landmark_matrix(size, 0.1, batch=(2,))
    matrix = torch.cat([symmetric, symmetric + 1e-3 * torch.rand(size)])
    matrix = matrix.to(backend.device)
    first, *others = backend.run_in_every_order(
        lambda: backend.newton_schulz_inverse(matrix, 30, 0.01, 'transpose')
    )
    for result in others:
        assert torch.equal(result, first)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_float32_inside(backend, dtype):
    matrix = landmark_matrix(49, 0.3).to(backend.device, dtype)
    arguments = (16, 0.01, 'identity')
    expected = backend.newton_schulz_inverse(matrix.float(), *arguments)
    half = backend.newton_schulz_inverse(matrix, *arguments)
    assert torch.equal(half, expected.to(dtype))


def test_counts_of_the_documentation():
    assert default_num_iters(49, 0.01, 'identity') == 16
    assert default_num_iters(49, 0.01, 'transpose') == 27


def test_default_arguments():
    matrix = landmark_matrix(49, 0.1)
    for init in INITS:
        count = default_num_iters(49, 0.01, init)
        expected = OPERATOR(matrix, count, 0.01, init)
        found = newton_schulz_inverse(matrix, init=init)
        assert torch.equal(found, expected)
    found = newton_schulz_inverse(matrix)
    assert torch.equal(found, OPERATOR(matrix, 16, 0.01, 'identity'))


def test_the_printed_start_diverges():
    # alpha = 2 / ||W||_2, X_0 = alpha W^T, as the paper prints it.
    w = landmark_matrix(49, 0.1, dtype=torch.float64)
    x = 2 / torch.linalg.matrix_norm(w, 2) * w.mT
    for _ in range(5):
        x = 2 * x - x @ (w @ x)
    assert residual(w, x, ridge=0) > 1e3


def test_gradient_is_that_of_the_inverse():
    matrix = landmark_matrix(7, 1, dtype=torch.float64)
    grad = torch.randn_like(matrix)
    results = []
    for invert in (
        lambda m: newton_schulz_inverse(m, num_iters=40),
        lambda m: torch.linalg.inv(m + 0.01 * torch.eye(7).double()),
    ):
        m = matrix.clone().requires_grad_()
        invert(m).backward(grad)
        results.append(m.grad)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    'arguments, error, message',
    [
        (dict(matrix=3.0), TypeError, 'matrix must be a torch.Tensor'),
        (dict(matrix=torch.ones(2, 3)), ValueError, r'\(2, 3\)'),
        (dict(matrix=torch.ones(0, 0)), ValueError, 'M >= 1'),
        (dict(init='random'), ValueError, "got 'random'"),
        (dict(ridge=-1.0), ValueError, 'got -1.0'),
        (dict(ridge=0.0), ValueError, 'pass num_iters'),
        (dict(num_iters=0), ValueError, 'got 0'),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        newton_schulz_inverse(**{'matrix': torch.eye(3), **arguments})


@pytest.mark.parametrize('requires_grad', [True, False])
def test_opcheck(requires_grad):
    matrix = torch.eye(4).expand(2, 4, 4).clone()
    matrix.requires_grad_(requires_grad)
    torch.library.opcheck(OPERATOR.default, (matrix, 6, 0.01, 'identity'))


def test_flop_formula():
    with FlopCounterMode(display=False) as counter:
        OPERATOR(torch.eye(4), 6, 0.01, 'identity')
    counts = counter.get_flop_counts()['Global']
    assert counts[OPERATOR] == 6 * 2 * 2 * 4**3


def test_decomposition():
    class Attention(torch.nn.Module):
        def forward(self, x, y):
            kernel = cuda_ops.laplacian_kernel(x, y)
            landmarks = cuda_ops.laplacian_kernel(y, y)
            return kernel @ newton_schulz_inverse(landmarks)

    inputs = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    program = torch.export.export(Attention(), inputs)
    assert 'mmlaplacian' in str(program.graph)
    table = torch.export.default_decompositions()
    standard = program.run_decompositions(
        {**table, **cuda_ops.decompositions()}
    )
    assert 'mmlaplacian' not in str(standard.graph)
    torch.testing.assert_close(
        standard.module()(*inputs),
        Attention()(*inputs),
        rtol=1e-4,
        atol=1e-4,
    )
