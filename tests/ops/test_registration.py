"""The operators as PyTorch sees them."""

import pytest
import torch

OPS = torch.ops.mmlaplacian
SAMPLES = [
    (
        'laplacian_kernel',
        lambda grad: (
            torch.randn(2, 9, 5, requires_grad=grad),
            torch.randn(2, 4, 5, requires_grad=grad),
            4.0,
        ),
    ),
    (
        'newton_schulz_inverse',
        lambda grad: (
            torch.eye(4).expand(2, 4, 4).clone().requires_grad_(grad),
            6,
            0.01,
            'identity',
        ),
    ),
]


@pytest.mark.parametrize('grad', [True, False])
@pytest.mark.parametrize('name, sample', SAMPLES, ids=lambda v: str(v)[:20])
def test_opcheck(name, sample, grad):
    import cuda_ops  # noqa: F401

    torch.library.opcheck(getattr(OPS, name).default, sample(grad))


def test_opcheck_backward():
    x, y = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    kernel = torch.rand(2, 9, 4)
    torch.library.opcheck(
        OPS.laplacian_kernel_backward.default, (kernel, x, y, kernel, 4.0)
    )
