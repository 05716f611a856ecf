"""Trainings with AttentionDiagnosticsHook."""

import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from diagnosed_training import (
    HOOK,
    NYSTROM,
    Classifier,
    layers_of,
    loader,
    names,
    records,
    train,
)
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmlaplacian.hooks.attention_diagnostics import AttentionDiagnosticsHook


@pytest.mark.parametrize(
    'backbone',
    [dict(), dict(with_cp=True), dict(frozen_stages=2)],
    ids=['plain', 'checkpointing', 'frozen'],
)
def test_one_record_every_two_iterations_of_epochs(backbone, tmp_path):
    """The count continues over the ends of epochs of three iterations."""
    log_dir = train(Classifier(**backbone), tmp_path / 'run')
    found = records(log_dir)
    assert [r['step'] for r in found] == [2, 4, 6]
    for record in found:
        assert names(record, 0) == names(record, 1) == NYSTROM
        assert names(record, 2) == names(record, 3) == {'dead_share'}
        # Records are separate from the lines of the loss.
        assert len(record) == 13 and 'loss' not in record
        assert record['attention/stage0/landmarks'] == 49
        assert all(math.isfinite(value) for value in record.values())
    assert 'attention/' not in next(log_dir.glob('*.log')).read_text()


def test_iterations_and_validation(tmp_path):
    """The hook is added as ``--cfg-options default_hooks...`` adds it."""
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


@pytest.mark.parametrize('interval', [1, 2])
def test_compiled_model_trains_and_warns(interval, tmp_path):
    """Compilation with and without hooks in the first iteration."""
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
from diagnosed_training import Classifier, records, train

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
            *(script, tmp_path / 'run', here.parent),
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
