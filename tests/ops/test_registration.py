"""The operators as PyTorch sees them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import cuda_ops

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
    torch.library.opcheck(getattr(OPS, name).default, sample(grad))


def test_opcheck_backward():
    x, y = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    kernel = torch.rand(2, 9, 4)
    torch.library.opcheck(
        OPS.laplacian_kernel_backward.default, (kernel, x, y, kernel, 4.0)
    )


def test_pytorch_counts_by_formula():
    x, y = torch.randn(2, 9, 5, requires_grad=True), torch.randn(2, 4, 5)
    with FlopCounterMode(display=False) as counter:
        kernel = OPS.laplacian_kernel(x, y, 4.0)
        kernel.sum().backward()
        OPS.newton_schulz_inverse(torch.eye(4), 6, 0.01, 'identity')
    counts = counter.get_flop_counts()['Global']
    assert counts[OPS.laplacian_kernel] == 2 * 2 * 9 * 4 * 5
    assert counts[OPS.laplacian_kernel_backward] == 2 * 2 * 2 * 9 * 4 * 5
    assert counts[OPS.newton_schulz_inverse] == 6 * 2 * 2 * 4**3


def test_no_operator_of_ours_after_decomposition():
    class Attention(torch.nn.Module):
        def forward(self, x, y):
            kernel = cuda_ops.laplacian_kernel(x, y)
            landmarks = cuda_ops.laplacian_kernel(y, y)
            return kernel @ cuda_ops.newton_schulz_inverse(landmarks)

    x, y = torch.randn(2, 9, 5), torch.randn(2, 4, 5)
    program = torch.export.export(Attention(), (x, y))
    assert 'mmlaplacian' in str(program.graph)
    table = torch.export.default_decompositions()
    standard = program.run_decompositions(
        {**table, **cuda_ops.decompositions()}
    )
    assert 'mmlaplacian' not in str(standard.graph)
    torch.testing.assert_close(
        standard.module()(x, y), Attention()(x, y), rtol=1e-4, atol=1e-4
    )
