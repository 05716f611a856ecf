import pytest
import torch

from cuda_ops import laplacian_kernel, newton_schulz_inverse
from cuda_ops.newton_schulz import INITS, default_num_iters


def landmark_matrix(size, spread, batch=(), dtype=torch.float64):
    points = spread * torch.randn(*batch, size, 8, dtype=dtype)
    return laplacian_kernel(points, points)


def residual(matrix, inverse, ridge=0.01):
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    return (identity - (matrix + ridge * identity) @ inverse).abs().max()


@pytest.mark.parametrize('init', INITS)
@pytest.mark.parametrize('size', [1, 4, 48, 49, 64, 128, 129, 256])
@pytest.mark.parametrize('spread', [0, 0.01, 0.1, 1])
def test_default_count_reaches_the_residual(size, spread, init):
    matrix = landmark_matrix(size, spread)
    inverse = newton_schulz_inverse(matrix, init=init)
    assert residual(matrix, inverse) < 1e-3


@pytest.mark.parametrize('spread', [0, 0.1, 1])
def test_float32_reaches_the_residual(spread):
    matrix = landmark_matrix(49, spread, dtype=torch.float32)
    inverse = newton_schulz_inverse(matrix)
    assert inverse.dtype == torch.float32
    assert residual(matrix.double(), inverse.double()) < 1e-3


def test_counts_of_the_documentation():
    assert default_num_iters(49, 0.01, 'identity') == 16
    assert default_num_iters(49, 0.01, 'transpose') == 27


def test_one_iteration_less_is_not_enough():
    # The worst matrix of the bound: all landmarks alike.
    matrix = torch.ones(49, 49, dtype=torch.float64)
    count = default_num_iters(49, 0.01)
    inverse = newton_schulz_inverse(matrix, num_iters=count - 1)
    assert residual(matrix, inverse) > 1e-3


@pytest.mark.parametrize('init', INITS)
def test_against_linalg(init):
    matrix = landmark_matrix(49, 1, batch=(2, 3))
    identity = torch.eye(49, dtype=matrix.dtype)
    torch.testing.assert_close(
        newton_schulz_inverse(matrix, num_iters=40, init=init),
        torch.linalg.inv(matrix + 0.01 * identity),
    )


def test_transpose_start_needs_no_symmetry():
    matrix = landmark_matrix(6, 1)
    matrix = matrix + 0.1 * torch.randn_like(matrix)
    inverse = newton_schulz_inverse(matrix, num_iters=40, init='transpose')
    assert residual(matrix, inverse) < 1e-9


def test_the_printed_start_diverges():
    # alpha = 2 / ||W||_2, X_0 = alpha W^T, as the paper prints it.
    w = landmark_matrix(49, 0.1)
    x = 2 / torch.linalg.matrix_norm(w, 2) * w.mT
    for _ in range(5):
        x = 2 * x - x @ (w @ x)
    assert residual(w, x, ridge=0) > 1e3


def test_gradient_is_that_of_the_inverse():
    matrix = landmark_matrix(7, 1)
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


def test_matrices_do_not_depend_on_each_other():
    a, b, c = (landmark_matrix(49, s)[None].float() for s in (1, 0.01, 9))
    with_b = newton_schulz_inverse(torch.cat([a, b]))[0]
    with_c = newton_schulz_inverse(torch.cat([a, 100 * c]))[0]
    assert torch.equal(with_b, with_c)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_float32_inside(dtype):
    matrix = landmark_matrix(49, 0.3).to(dtype)
    expected = newton_schulz_inverse(matrix.float()).to(dtype)
    assert torch.equal(newton_schulz_inverse(matrix), expected)


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
