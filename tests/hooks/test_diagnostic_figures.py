"""Figures of AttentionDiagnosticsHook, compared with dense formulas."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from diagnosed_training import (
    NYSTROM,
    ONCE,
    Classifier,
    data,
    layers_of,
    names,
    records,
    train,
)
from helpers import laplacian_broadcast
from torch import nn

from cuda_ops import KERNELS
from mmlaplacian.hooks.attention_diagnostics import (
    effective_rank,
    layers_by_stage,
    mean_off_diagonal,
    solver_residual,
)
from mmlaplacian.models import ARCHS, ATTENTIONS, LaplacianFormer


def direct(layer, x, hw):
    """Every figure from x by its formula, with N x N matrices."""
    q, k, _ = (
        t.unflatten(-1, (layer.num_heads, -1)).transpose(0, 1)
        for t in layer.qkv(x[0]).detach().split(layer.dim, -1)
    )
    scale = q.shape[-1] ** -0.25
    q, k = q * scale, k * scale
    row = KERNELS[layer.kernel]

    def kernel(a, b):
        if layer.kernel == 'laplacian':
            return laplacian_broadcast(a, b)
        return row.function(a, b, row.bandwidth)

    def unit(c):
        largest = c.amax((-2, -1), keepdim=True)
        return c / largest.where(largest > 1e-30, 1)

    figures = {}
    if hw[0] * hw[1] <= 49:
        g = unit(kernel(q, k))
    else:
        q_map = q.transpose(1, 2).unflatten(-1, hw)
        landmarks = F.adaptive_avg_pool2d(q_map, 7).flatten(2).mT
        w = kernel(landmarks, landmarks)
        w = w / w.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None, None]
        eye = torch.eye(49).to(w)
        p = w + 0.01 * eye
        if row.bounded:
            inverse = eye / p.abs().sum(-1).amax(-1)[:, None, None]
            for _ in range(layer.solver_cfg['num_iters'] or 16):
                inverse = inverse @ (2 * eye - p @ inverse)
        else:
            inverse = torch.linalg.inv(p)
        residual = (eye - p @ inverse).square().sum((-2, -1)).div(49).sqrt()
        singular = torch.linalg.svdvals(w)
        shares = singular / singular.sum(-1, keepdim=True)
        rank = torch.exp(-(shares * shares.log()).sum(-1))
        off = w[:, ~torch.eye(49, dtype=torch.bool)]
        figures.update(
            residual=residual.max().item(),
            effective_rank=rank.mean().item(),
            landmarks=49,
            off_diagonal=off.mean().item(),
        )
        c_q, c_k = kernel(q, landmarks), kernel(k, landmarks)
        g = unit(c_q) @ inverse @ unit(c_k).mT
    eps = 1e-5 * g.mean(1).square().mean(-1, keepdim=True) + 1e-20
    if layer.kernel_cfg['centering'] == 'both':
        g = g - g.mean(2, keepdim=True)
    dead = g.var(1, correction=0) < eps
    return dict(figures, dead_share=dead.double().mean().item())


def inputs_of(model, images):
    """Every attention layer's input in a pass of the model."""
    found, handles = {}, []
    for layer in layers_of(model):
        handles.append(
            layer.register_forward_pre_hook(
                lambda layer, args: found.update({layer: args})
            )
        )
    with torch.no_grad():
        model.backbone(images)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(
    'attention, gain',
    [
        (dict(), 1),
        (dict(), 300),
        (dict(num_iters=8), 20),
        (dict(centering='column'), 300),
        (dict(kernel='gaussian'), 20),
        (dict(kernel='polynomial'), 20),
        (dict(kernel='cosine', solver='cholesky'), 1),
    ],
    ids=str,
)
def test_record_equals_the_dense_form(attention, gain, tmp_path):
    """The record describes the first image, before the optimizer step."""
    model = Classifier(attention=attention, drop_path_rate=0.0).double()
    for layer in layers_of(model):
        with torch.no_grad():
            layer.qkv.weight[: 2 * layer.dim] *= gain
    before = copy.deepcopy(model)
    log_dir = train(model, tmp_path / 'run', *ONCE)
    (record,) = records(log_dir)
    inputs = inputs_of(before, data(1)[0][0][None].double())
    for i, (layer, arguments) in enumerate(inputs.items()):
        expected = direct(layer, *arguments)
        assert names(record, i) == set(expected)
        for name, value in expected.items():
            assert record[f'attention/stage{i}/{name}'] == pytest.approx(
                value, rel=1e-6, abs=1e-9
            ), (i, name)


def test_figures_of_known_matrices():
    eye, ones = torch.eye(5).double(), torch.ones(5, 5).double()
    assert effective_rank(eye).item() == pytest.approx(5)
    assert effective_rank(ones).item() == pytest.approx(1)
    half = torch.diag(torch.tensor([1.0, 1, 0, 0]).double())
    assert effective_rank(half).item() == pytest.approx(2)
    assert mean_off_diagonal(ones).item() == 1
    assert mean_off_diagonal(eye).item() == 0
    p = ones + 0.01 * eye
    assert solver_residual(ones, torch.linalg.inv(p), 0.01) < 1e-12
    assert solver_residual(ones, 0 * ones, 0.01) == 1
    # The solution lacks one of five directions.
    unsolved = torch.linalg.inv(p) @ (eye - ones / 5)
    found = solver_residual(ones, unsolved, 0.01).item()
    assert found == pytest.approx(math.sqrt(1 / 5))


def test_mean_over_layers_and_worst_residual(tmp_path):
    """A stage of two layers, one of which does too few iterations."""
    arch = dict(ARCHS['nano'], depths=(2, 1, 1, 1))
    model = Classifier(arch=arch, drop_path_rate=0.0)
    bad = model.backbone.stages[0].blocks[0].attn
    bad.solver_cfg['num_iters'] = 2
    before = copy.deepcopy(model)
    log_dir = train(model, tmp_path / 'run', *ONCE)
    (record,) = records(log_dir)
    inputs = inputs_of(before, data(1)[0][0][None])
    one, two, *_ = (direct(layer, *given) for layer, given in inputs.items())
    assert one['residual'] > 10 * two['residual']
    for name, expected in dict(
        residual=one['residual'],
        effective_rank=(one['effective_rank'] + two['effective_rank']) / 2,
    ).items():
        assert record[f'attention/stage0/{name}'] == pytest.approx(
            expected, rel=1e-3
        )


def test_blown_up_projections_show_as_dead(tmp_path):
    model = Classifier()
    with torch.no_grad():
        model.backbone.stages[1].blocks[0].attn.qkv.weight[:64] *= 1e6
    record = records(train(model, tmp_path / 'run'))[0]
    assert record['attention/stage1/dead_share'] == 1
    assert record['attention/stage1/effective_rank'] == pytest.approx(49)
    assert record['attention/stage0/dead_share'] < 0.5


def test_nan_shows_in_the_figures(tmp_path):
    model = Classifier()
    with torch.no_grad():
        model.backbone.stages[1].blocks[0].attn.qkv.weight[0, 0] = math.nan
    (record,) = records(train(model, tmp_path / 'run', *ONCE))
    for name in NYSTROM - {'landmarks'}:
        assert math.isfinite(record[f'attention/stage0/{name}'])
        assert math.isnan(record[f'attention/stage1/{name}'])
    assert math.isnan(record['attention/stage3/dead_share'])


def test_the_warning_names_the_layer_and_what_broke(tmp_path):
    model = Classifier()
    # Only the values are broken, which no figure uses.
    with torch.no_grad():
        model.backbone.stages[3].blocks[0].attn.qkv.bias[-1] = math.inf
    log_dir = train(model, tmp_path / 'run', *ONCE)
    text = next(log_dir.glob('*.log')).read_text()
    assert (
        'iteration 1: NaN or Inf in backbone.stages.3.blocks.0.attn '
        '(result), the first of 1 such layers among 4'
    ) in text


@pytest.mark.parametrize(
    'attention, expected',
    [
        (dict(whitening='row'), [NYSTROM - {'dead_share'}] * 2 + [set()] * 2),
        (dict(approximation='exact'), [{'dead_share'}] * 4),
        (
            dict(landmark_grid=1),
            [NYSTROM - {'off_diagonal'}] * 4,
        ),
        (dict(landmark_pool='dwconv'), [NYSTROM] * 4),
    ],
    ids=['whitening', 'exact', 'grid', 'pool'],
)
def test_figures_depend_on_the_attention(attention, expected, tmp_path):
    log_dir = train(Classifier(attention=attention), tmp_path / 'run')
    for record in records(log_dir):
        assert [names(record, i) for i in range(4)] == expected


@pytest.mark.parametrize(
    'type', sorted(ATTENTIONS.keys() - {'LaplacianAttention'})
)
def test_attention_without_a_kernel_matrix(type, tmp_path):
    log_dir = train(Classifier(attention=dict(type=type)), tmp_path / 'run')
    assert not records(log_dir)
    text = next(log_dir.glob('*.log')).read_text()
    # The warning appears once, not at all three records.
    assert text.count('neither landmarks nor whitening') == 1


class Plain(Classifier):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 128, 4, 4), nn.Identity())

    def forward(self, images, labels, mode='tensor'):
        scores = self.head(self.backbone(images).mean((2, 3)))
        return dict(loss=F.cross_entropy(scores, labels))


def test_a_model_without_our_backbone(tmp_path):
    log_dir = train(Plain(), tmp_path / 'run')
    assert not records(log_dir)
    text = next(log_dir.glob('*.log')).read_text()
    assert text.count('the model has no LaplacianFormer') == 1


def test_two_backbones_have_different_names():
    model = nn.ModuleDict(
        dict(
            teacher=LaplacianFormer('nano', out_indices=(0,)),
            student=LaplacianFormer('nano', out_indices=(1,)),
        )
    )
    stages = layers_by_stage(model)
    assert list(stages) == [
        *('teacher/stage0', 'student/stage0', 'student/stage1')
    ]
    assert [len(layers) for layers in stages.values()] == [1, 1, 1]
