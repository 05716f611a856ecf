"""Work directories that mmengine's own Runner wrote, whole and damaged."""

import itertools

import pytest
from toy_runs import ToyMetric, toy_config, toy_test, toy_train

from mmlaplacian.experiments.run_logs import (
    DONE,
    INVALID,
    NOT_RUN,
    TRAINED,
    UNFINISHED,
    read_run,
)


@pytest.fixture(autouse=True)
def _count_from_one():
    ToyMetric.counts = itertools.count(1)


def values(run):
    return [test.metrics['accuracy/top1'] for test in run.tests]


def test_without_logs(tmp_path):
    assert read_run(tmp_path / 'gone').status == NOT_RUN
    run = read_run(tmp_path)
    assert run.status == NOT_RUN and str(tmp_path) in run.reason


@pytest.mark.parametrize('length', [{}, dict(max_iters=10)])
def test_figures_come_from_tests_of_the_final_checkpoint(length, tmp_path):
    config = toy_config(**length)
    toy_train(tmp_path, config)
    run = read_run(tmp_path)
    assert run.status == TRAINED and run.config.train_cfg == config.train_cfg
    final, early = ('iter_10', 'iter_4') if length else ('epoch_3', 'epoch_2')
    toy_test(tmp_path, f'{early}.pth', config)
    assert read_run(tmp_path).status == TRAINED
    for _ in range(2):
        toy_test(tmp_path, f'{final}.pth', config)
    run = read_run(tmp_path)
    # Three validations and a test come first; the newest test is the first.
    assert run.status == DONE and values(run) == [6.0, 5.0]


@pytest.mark.parametrize(
    'length, reached',
    [({}, 'epoch 2 of 3'), (dict(max_iters=10), 'iter 6 of 10')],
)
def test_killed_training(length, reached, tmp_path):
    toy_train(tmp_path, toy_config(**length), stop=7)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED and run.reason == f'reached {reached}'


def test_training_killed_before_its_first_log(tmp_path):
    toy_train(tmp_path, stop=1)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED
    assert 'no training iteration is logged' in run.reason


def test_resumed_training(tmp_path):
    toy_train(tmp_path, toy_config(load_from=None), stop=7)
    toy_train(tmp_path, stop=11, resume=True)
    # Epoch 3 has begun, but its checkpoint is missing.
    assert read_run(tmp_path).status == UNFINISHED
    toy_train(tmp_path, resume=True)
    run = read_run(tmp_path)
    assert run.status == TRAINED
    assert run.config.resume and not run.start.resume
    toy_train(tmp_path, resume=True)
    assert read_run(tmp_path).status == TRAINED


def test_a_new_training_replaces_the_one_before(tmp_path):
    toy_train(tmp_path)
    toy_test(tmp_path, 'epoch_3.pth')
    toy_train(tmp_path, stop=7)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED and 'epoch 2 of 3' in run.reason


def test_loss_that_is_not_a_number(tmp_path):
    broken = toy_config(**{'model.not_finite': [5, 6]})
    toy_train(tmp_path, broken, stop=7)
    run = read_run(tmp_path)
    assert run.status == INVALID
    assert run.reason == 'the loss is nan in iteration 6'
    # Resuming from epoch 1 trains iterations 5 and 6 again.
    toy_train(tmp_path, resume=True)
    assert read_run(tmp_path).status == TRAINED


def test_a_loss_that_recovers_is_valid(tmp_path):
    toy_train(tmp_path, toy_config(**{'model.not_finite': [6]}))
    assert read_run(tmp_path).status == TRAINED


def test_damaged_training_log(tmp_path):
    toy_train(tmp_path)
    (path,) = tmp_path.glob('*/vis_data/2*.json')
    lines = path.read_text().splitlines()
    # A killed process leaves half a last line.
    path.write_text('\n'.join([*lines, lines[0][:20]]))
    assert read_run(tmp_path).status == TRAINED
    lines[3] = lines[3][:20]
    path.write_text('\n'.join(lines))
    run = read_run(tmp_path)
    assert run.status == INVALID
    assert f'{path}, line 4 is not JSON' in run.reason


def test_damaged_test_log(tmp_path):
    toy_train(tmp_path)
    toy_test(tmp_path, 'epoch_3.pth')
    (path,) = tmp_path.glob('2*/2*.json')
    path.write_text('{"accuracy')
    run = read_run(tmp_path)
    assert run.status == INVALID and f'{path} is not JSON' in run.reason


@pytest.mark.parametrize(
    'content, said',
    [
        (None, 'cannot be read'),
        ('model = dict(', 'cannot be read'),
        ('train_cfg = dict()', 'expected max_epochs or max_iters'),
    ],
)
def test_damaged_config(content, said, tmp_path):
    toy_train(tmp_path)
    (path,) = tmp_path.glob('2*/vis_data/config.py')
    path.unlink()
    if content:
        path.write_text(content)
    run = read_run(tmp_path)
    assert run.status == INVALID and said in run.reason
