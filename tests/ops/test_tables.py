"""Kernel functions and solvers that a config can choose."""

import pytest
import torch

from cuda_ops import KERNELS, SOLVERS, laplacian_kernel


@pytest.fixture
def matrix():
    points = torch.randn(2, 16, 8, dtype=torch.float64)
    return laplacian_kernel(points, points)


@pytest.mark.parametrize('name', SOLVERS)
def test_solver_inverts(name, matrix):
    num_iters = 60 if name in ('newton_schulz', 'cg') else None
    inverse = SOLVERS[name](matrix, num_iters=num_iters, ridge=0.01)
    identity = torch.eye(16, dtype=torch.float64)
    expected = torch.linalg.inv(matrix + 0.01 * identity)
    torch.testing.assert_close(inverse, expected)


@pytest.mark.parametrize('name', SOLVERS)
def test_solver_gradient(name, matrix):
    num_iters = 60 if name in ('newton_schulz', 'cg') else None
    grad = torch.randn_like(matrix)
    grad = grad + grad.mT
    identity = torch.eye(16, dtype=torch.float64)
    found, exact = (matrix.clone().requires_grad_() for _ in range(2))
    SOLVERS[name](found, num_iters=num_iters, ridge=0.01).backward(grad)
    torch.linalg.inv(exact + 0.01 * identity).backward(grad)
    # Solvers for symmetric matrices may split a gradient over the triangles.
    torch.testing.assert_close(
        found.grad + found.grad.mT, exact.grad + exact.grad.mT
    )


@pytest.mark.parametrize('name', SOLVERS)
def test_solver_with_equal_landmarks(name):
    inverse = SOLVERS[name](torch.ones(1, 49, 49), ridge=0.01)
    assert inverse.isfinite().all()


def test_cholesky_of_an_indefinite_matrix():
    with pytest.raises(ValueError, match='not positive definite'):
        SOLVERS['cholesky'](-torch.eye(3))


def dense(name, x, y):
    difference = x[:, None] - y[None]
    return {
        'laplacian': lambda: torch.exp(-difference.abs().sum(-1) / 4),
        'gaussian': lambda: torch.exp(-difference.square().sum(-1) / 2),
        'cosine': lambda: torch.cosine_similarity(x[:, None], y[None], -1),
        'polynomial': lambda: (1 + (x[:, None] * y[None]).sum(-1)) ** 2,
    }[name]()


def test_gaussian_far_from_the_origin():
    x = 1000 + torch.randn(9, 5)
    function, bandwidth, _ = KERNELS['gaussian']
    torch.testing.assert_close(
        function(x, x, bandwidth), dense('gaussian', x, x)
    )


@pytest.mark.parametrize('name', KERNELS)
def test_kernel_formula(name):
    x = torch.randn(9, 5, dtype=torch.float64)
    y = torch.randn(7, 5, dtype=torch.float64)
    kernel = KERNELS[name]
    torch.testing.assert_close(
        kernel.function(x, y, kernel.bandwidth), dense(name, x, y)
    )
    values = kernel.function(x, x, kernel.bandwidth)
    in_range = (values >= 0).all() and (values <= 1 + 1e-12).all()
    assert kernel.bounded == bool(in_range)
