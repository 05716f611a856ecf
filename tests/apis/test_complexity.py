"""Counting of parameters and multiply-adds."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mmlaplacian.apis import count
from mmlaplacian.models import LaplacianAttention, LaplacianFormer

ROOT = Path(__file__).resolve().parents[2]
TINY = 'configs/mask_rcnn/mask-rcnn_laplacianformer-tiny_fpn_1x_coco.py'


class OneAttention(nn.Module):
    """A map's tokens through one layer."""

    def __init__(self, **switches):
        super().__init__()
        self.attn = LaplacianAttention(3, 1, local_kernel_size=0, **switches)

    def forward(self, x):
        return self.attn(x.flatten(2).transpose(1, 2), tuple(x.shape[-2:]))


def test_counts_by_hand():
    n, m, d = 20 * 20, 49, 3
    result = count(OneAttention(), torch.zeros(1, 3, 20, 20))
    layers = n * d * 3 * d + n * d * d
    assert result.core == layers + 2 * n * m * d
    assert result.extra == dict(
        distance=(2 * n * m + m * m) * d,
        solver=2 * m**3 * 16,
        pooling=(20 * 7 * 20 + 7 * 20 * 7) * d,
        whitening=3 * n * m * m,
    )
    assert result.full == result.core + sum(result.extra.values())
    assert result.parameters == 4 * d * d + 4 * d


@pytest.mark.parametrize('switches', [dict(), dict(solver='cholesky')])
def test_products_are_those_that_pytorch_counts(switches):
    # Pooling, whitening and both value products are matrix products;
    # distances, covariances' last sums and the solver are not.
    attention = LaplacianAttention(32, 2, **switches)
    x = torch.zeros(1, 400, 32)
    with FlopCounterMode(display=False) as counter:
        attention(x, (20, 20))
    bmm = counter.get_flop_counts()['Global'][torch.ops.aten.bmm] // 2
    formula = attention.multiply_adds((20, 20))
    parts = ('pooling', 'products', 'whitening')
    expected = sum(formula[part] for part in parts)
    # Besides: the mean over the queries, two vectors of M.
    assert bmm == pytest.approx(expected, rel=0.02)


def test_several_images_count_several_times():
    with torch.device('meta'):
        model = LaplacianFormer('nano').eval()
        one = count(model, torch.empty(1, 3, 224, 224))
        two = count(model, torch.empty(2, 3, 224, 224))
    assert two.core == 2 * one.core and two.full == 2 * one.full


@pytest.mark.parametrize(
    'options, lines',
    [
        (
            ['--backbone'],
            ['LaplacianFormer at 224 x 224', '11.55 M', '2.13 G', 'solver'],
        ),
        (['--shape', '64', '96'], ['MaskRCNN at 64 x 96', '31.72 M']),
    ],
)
def test_tool_needs_no_data(options, lines, tmp_path, openmmlab):
    result = subprocess.run(
        [
            sys.executable,
            ROOT / 'tools/analysis_tools/get_flops.py',
            ROOT / TINY,
            *options,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for line in lines:
        assert line in result.stdout
