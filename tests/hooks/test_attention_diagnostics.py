import copy
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import laplacian_broadcast
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from cuda_ops import KERNELS
from mmlaplacian.hooks.attention_diagnostics import (
    AttentionDiagnosticsHook,
    effective_rank,
    layers_by_stage,
    mean_off_diagonal,
    solver_residual,
)
from mmlaplacian.models import (
    ARCHS,
    ATTENTIONS,
    LaplacianAttention,
    LaplacianFormer,
)

#: 384, 96, 24 and 6 tokens: two stages with landmarks, two without.
IMAGE = (3, 64, 96)
NYSTROM = {
    *('residual', 'effective_rank', 'landmarks', 'off_diagonal', 'dead_share')
}


class Classifier(BaseModel):
    """Backbone and a linear layer."""

    def __init__(self, amp=False, **backbone):
        super().__init__()
        torch.manual_seed(0)
        self.amp = amp
        self.backbone = LaplacianFormer(**{'arch': 'nano', **backbone})
        self.head = nn.Linear(128, 10)
        self.losses = []

    def forward(self, images, labels, mode='tensor'):
        images = images.to(self.head.weight.dtype)
        with torch.autocast('cpu', torch.bfloat16, enabled=self.amp):
            scores = self.head(self.backbone(images)[-1].mean((2, 3)))
            loss = F.cross_entropy(scores.float(), labels)
        if mode == 'loss':
            self.losses.append(loss.item())
            return dict(loss=loss)
        return scores


def data(number):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(number, *IMAGE, generator=generator)
    return [(image, i % 10) for i, image in enumerate(images)]


def loader(number):
    return dict(
        dataset=data(number),
        batch_size=2,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
    )


HOOK = dict(type='AttentionDiagnosticsHook', interval=2)
#: One iteration, recorded.
ONCE = dict(HOOK, interval=1), dict(by_epoch=False, max_iters=1)


def train(
    model,
    folder,
    hook=HOOK,
    loop=None,
    backends=('LocalVisBackend',),
    more_hooks=None,
    number=6,
    **more,
):
    """Train, and give the folder of what was logged."""
    runner = Runner(
        model=model,
        work_dir=str(folder),
        train_dataloader=loader(number),
        train_cfg=loop or dict(by_epoch=True, max_epochs=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        custom_hooks=[dict(hook)] if hook else None,
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1),
            checkpoint=None,
            **more_hooks or {},
        ),
        visualizer=dict(
            type='Visualizer', vis_backends=[dict(type=b) for b in backends]
        ),
        experiment_name=f'{folder.parent.name}_{folder.name}',
        randomness=dict(seed=0),
        **more,
    )
    runner.train()
    return Path(runner.log_dir)


def records(log_dir):
    """Our lines of scalars.json."""
    lines = (log_dir / 'vis_data/scalars.json').read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [r for r in found if any(k.startswith('attention/') for k in r)]


def names(record, stage):
    """Which figures a record has of a stage."""
    start = f'attention/stage{stage}/'
    return {k.removeprefix(start) for k in record if k.startswith(start)}


def layers_of(model):
    return [m for m in model.modules() if isinstance(m, LaplacianAttention)]


# The figures


def direct(layer, x, hw):
    """Every figure from x by its formula, from N x N matrices."""
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
    """Of the first image, before the step that this iteration takes."""
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
    # One of five directions is not solved for.
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


# The training


@pytest.mark.parametrize(
    'backbone',
    [dict(), dict(with_cp=True), dict(frozen_stages=2)],
    ids=['plain', 'checkpointing', 'frozen'],
)
def test_one_record_every_two_iterations_of_epochs(backbone, tmp_path):
    """Three iterations an epoch: the count goes on over their ends."""
    log_dir = train(Classifier(**backbone), tmp_path / 'run')
    found = records(log_dir)
    assert [r['step'] for r in found] == [2, 4, 6]
    for record in found:
        assert names(record, 0) == names(record, 1) == NYSTROM
        assert names(record, 2) == names(record, 3) == {'dead_share'}
        # Records of their own, not additions to the lines of the loss.
        assert len(record) == 13 and 'loss' not in record
        assert record['attention/stage0/landmarks'] == 49
        assert all(math.isfinite(value) for value in record.values())
    assert 'attention/' not in next(log_dir.glob('*.log')).read_text()


def test_iterations_validation_and_the_short_way_to_switch_it_on(tmp_path):
    """As ``--cfg-options default_hooks.attention.type=...`` does it."""
    log_dir = train(
        Classifier(),
        tmp_path / 'run',
        None,
        dict(by_epoch=False, max_iters=7, val_interval=2),
        more_hooks=dict(
            attention=dict(type='AttentionDiagnosticsHook', interval=3)
        ),
        number=14,
        val_cfg=dict(),
        val_dataloader=loader(2),
        val_evaluator=dict(
            type='DumpResults', out_file_path=str(tmp_path / 'p.pkl')
        ),
    )
    assert [r['step'] for r in records(log_dir)] == [3, 6]


@pytest.mark.parametrize(
    'options',
    [dict(), dict(with_cp=True), dict(amp=True), dict(amp=True, with_cp=True)],
    ids=str,
)
def test_training_is_the_same_to_the_bit(options, tmp_path):
    """Losses and weights, with random drop path."""
    results = []
    for hook in (dict(HOOK, interval=1), None):
        model = Classifier(drop_path_rate=0.5, **options)
        log_dir = train(model, tmp_path / f'run{bool(hook)}', hook)
        assert len(records(log_dir)) == (6 if hook else 0)
        results.append((model.losses, model.state_dict()))
    assert results[0][0] == results[1][0]
    for name, value in results[0][1].items():
        assert torch.equal(value, results[1][1][name]), name


def test_hooks_are_gone_between_records(tmp_path):
    counts = []

    class Count(Hook):
        priority = 'LOW'

        def before_train_iter(self, runner, batch_idx, data_batch=None):
            counts.append(
                sum(len(a._forward_hooks) for a in layers_of(runner.model))
            )

    model = Classifier()
    train(model, tmp_path / 'run', more_hooks=dict(count=Count()))
    assert counts == [0, 4] * 3
    assert not any(a._forward_hooks for a in layers_of(model))


# Broken layers


def test_blown_up_projections_show_as_dead(tmp_path):
    model = Classifier()
    with torch.no_grad():
        model.backbone.stages[1].blocks[0].attn.qkv.weight[:64] *= 1e6
    record = records(train(model, tmp_path / 'run'))[0]
    assert record['attention/stage1/dead_share'] == 1
    assert record['attention/stage1/effective_rank'] == pytest.approx(49)
    assert record['attention/stage0/dead_share'] < 0.5


def test_nan_is_said_and_named(tmp_path):
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
    # Only the values, which no figure looks at.
    with torch.no_grad():
        model.backbone.stages[3].blocks[0].attn.qkv.bias[-1] = math.inf
    log_dir = train(model, tmp_path / 'run', *ONCE)
    text = next(log_dir.glob('*.log')).read_text()
    assert (
        'iteration 1: NaN or Inf in backbone.stages.3.blocks.0.attn '
        '(result), the first of 1 such layers among 4'
    ) in text


# Other attentions and other models


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
def test_only_figures_that_exist(attention, expected, tmp_path):
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
    # Once, not at each of the three.
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


def test_two_backbones_are_told_apart():
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


# Compilation, processes, backends, scopes, arguments


@pytest.mark.parametrize('interval', [1, 2])
def test_compiled_model_trains_and_says_why_there_is_nothing(
    interval, tmp_path
):
    """With hooks there, or not, when the graph is made."""
    torch.compiler.reset()
    model = Classifier(drop_path_rate=0.0)
    model.backbone.compile(fullgraph=True, backend='eager')
    log_dir = train(model, tmp_path / 'run', dict(HOOK, interval=interval))
    assert len(model.losses) == 6
    assert not records(log_dir)
    text = next(log_dir.glob('*.log')).read_text()
    assert text.count('train without compile') == 1


PROCESSES = """
import sys
from pathlib import Path

import torch
from mmengine.dist import get_rank

from mmlaplacian.launch.processes import leave_processes

sys.path[:0] = sys.argv[2:]
from test_attention_diagnostics import Classifier, records, train

torch.distributed.init_process_group('gloo')
log_dir = train(
    Classifier(),
    Path(sys.argv[1]),
    loop=dict(by_epoch=False, max_iters=4),
    launcher='pytorch',
    cfg=dict(
        model_wrapper_cfg=dict(
            type='MMDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
        )
    ),
)
if get_rank() == 0:
    print('steps', [r['step'] for r in records(log_dir)])
leave_processes()
"""


def test_two_processes_write_once(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(PROCESSES)
    here = Path(__file__).resolve().parent
    result = subprocess.run(
        [
            *(sys.executable, '-m', 'torch.distributed.run'),
            *('--standalone', '--nproc_per_node', '2'),
            *(script, tmp_path / 'run', here, here.parent),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert 'steps [2, 4]' in result.stdout


def test_tensorboard(tmp_path):
    if find_spec('tensorboard') is None:
        pytest.skip('tensorboard is not installed')
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    log_dir = train(
        Classifier(),
        tmp_path / 'run',
        backends=('LocalVisBackend', 'TensorboardVisBackend'),
    )
    events = EventAccumulator(str(log_dir / 'vis_data'))
    events.Reload()
    tag = 'attention/stage0/effective_rank'
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars(tag)] == [
        (r['step'], r[tag]) for r in records(log_dir)
    ]


@pytest.mark.parametrize('scope', ['mmengine', 'mmdet', 'mmseg', 'mmpretrain'])
def test_bare_name_in_every_scope(scope):
    if find_spec(scope) is None:
        pytest.skip(f'{scope} is not installed')
    with HOOKS.switch_scope_and_registry(scope) as registry:
        hook = registry.build(dict(type='AttentionDiagnosticsHook'))
    assert isinstance(hook, AttentionDiagnosticsHook)
    assert hook.interval == 50


@pytest.mark.parametrize('interval', [0, -3, 2.5, True, '50', None])
def test_bad_interval(interval):
    with pytest.raises(ValueError, match='interval must be.*got'):
        HOOKS.build(dict(type='AttentionDiagnosticsHook', interval=interval))


def test_unknown_argument():
    with pytest.raises(TypeError, match="AttentionDiagnosticsHook.*'every'"):
        HOOKS.build(dict(type='AttentionDiagnosticsHook', every=5))
