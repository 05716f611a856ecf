"""Work directories that mmengine's own Runner wrote, whole and damaged."""

import itertools
import json

import pytest
from toy_runs import ToyMetric, toy_config, toy_test, toy_train

from mmlaplacian.experiments.run_logs import (
    BROKEN,
    DONE,
    NOT_RUN,
    UNFINISHED,
    read_run,
)


@pytest.fixture(autouse=True)
def _count_from_one():
    ToyMetric.counts = itertools.count(1)


def figures(run):
    return [
        (result.source, result.metrics['accuracy/top1'])
        for result in run.results
    ]


def scalars(work):
    return max(work.glob('*/vis_data/2*.json'))


def test_no_folder_and_nothing_in_it(tmp_path):
    assert read_run(tmp_path / 'gone').status == NOT_RUN
    run = read_run(tmp_path)
    assert run.status == NOT_RUN and str(tmp_path) in run.reason


def test_a_finished_training(tmp_path):
    toy_train(tmp_path)
    run = read_run(tmp_path)
    assert run.status == DONE and not run.reason
    assert figures(run) == [('validation of epoch 3', 3.0)]
    assert run.config.train_cfg.max_epochs == 3


def test_iterations(tmp_path):
    toy_train(tmp_path, toy_config(max_iters=10))
    run = read_run(tmp_path)
    assert run.status == DONE
    # After 4, 8 and 10.
    assert figures(run) == [('validation of iter 10', 3.0)]


def test_tests_of_the_last_checkpoint_come_first(tmp_path):
    toy_train(tmp_path)
    toy_test(tmp_path, 'epoch_2.pth')
    assert figures(read_run(tmp_path)) == [('validation of epoch 3', 3.0)]
    toy_test(tmp_path, 'epoch_3.pth')
    toy_test(tmp_path, 'epoch_3.pth')
    assert figures(read_run(tmp_path)) == [
        ('test of epoch_3.pth', 6.0),
        ('test of epoch_3.pth', 5.0),
        ('validation of epoch 3', 3.0),
    ]


def test_without_validation_the_test_decides(tmp_path):
    config = toy_config(val_cfg=None, val_dataloader=None, val_evaluator=None)
    toy_train(tmp_path, config)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED and 'epoch 3 of 3' in run.reason
    toy_test(tmp_path, 'epoch_3.pth', config)
    assert figures(read_run(tmp_path)) == [('test of epoch_3.pth', 1.0)]


def test_a_killed_training(tmp_path):
    toy_train(tmp_path, stop=7)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED and not run.results
    assert 'reached epoch 2 of 3 (iteration 6), log ends 20' in run.reason
    assert run.last_validation == ('validation of epoch 1', run_values(1))


def run_values(number):
    return {'accuracy/top1': float(number)}


def test_killed_iterations(tmp_path):
    toy_train(tmp_path, toy_config(max_iters=10), stop=7)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED
    assert 'reached iter 6 of 10, log ends' in run.reason
    assert run.last_validation == ('validation of iter 4', run_values(1))


def test_nothing_logged_yet(tmp_path):
    toy_train(tmp_path, stop=1)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED
    assert 'no training iteration is logged' in run.reason


def test_a_resumed_training(tmp_path):
    toy_train(tmp_path, toy_config(load_from=None), stop=7)
    toy_train(tmp_path, stop=11, resume=True)
    assert 'epoch 3 of 3 (iteration 10)' in read_run(tmp_path).reason
    toy_train(tmp_path, resume=True)
    run = read_run(tmp_path)
    assert figures(run) == [('validation of epoch 3', 3.0)]
    assert run.config.resume and not run.start.resume


def test_resuming_a_finished_training_logs_nothing(tmp_path):
    toy_train(tmp_path)
    toy_train(tmp_path, resume=True)
    assert figures(read_run(tmp_path)) == [('validation of epoch 3', 3.0)]


def test_a_training_begun_anew_replaces_the_one_before(tmp_path):
    toy_train(tmp_path)
    toy_test(tmp_path, 'epoch_3.pth')
    toy_train(tmp_path, stop=7)
    run = read_run(tmp_path)
    assert run.status == UNFINISHED and 'epoch 2 of 3' in run.reason


def test_loss_that_is_not_a_number(tmp_path):
    toy_train(tmp_path, toy_config(**{'model.not_finite': [*range(6, 99)]}))
    run = read_run(tmp_path)
    assert run.status == BROKEN and not run.results
    assert 'the loss is nan from iteration 6 on' in run.reason


def test_loss_that_recovers(tmp_path):
    toy_train(tmp_path, toy_config(**{'model.not_finite': [6]}))
    assert read_run(tmp_path).status == DONE


def test_resuming_before_the_loss_was_lost(tmp_path):
    toy_train(
        tmp_path, toy_config(**{'model.not_finite': [5, 6, 7, 8]}), stop=7
    )
    assert read_run(tmp_path).status == BROKEN
    toy_train(tmp_path, resume=True)
    assert read_run(tmp_path).status == DONE


def test_half_a_last_line(tmp_path):
    toy_train(tmp_path)
    path = scalars(tmp_path)
    path.write_text(path.read_text().rstrip()[:-9])
    run = read_run(tmp_path)
    assert run.status == UNFINISHED and 'epoch 3 of 3' in run.reason


def test_a_broken_line(tmp_path):
    toy_train(tmp_path)
    path = scalars(tmp_path)
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:20]
    path.write_text('\n'.join(lines))
    run = read_run(tmp_path)
    assert run.status == BROKEN and f'{path}, line 4 is not JSON' in run.reason


def test_a_broken_test(tmp_path):
    toy_train(tmp_path)
    toy_test(tmp_path, 'epoch_3.pth')
    (path,) = tmp_path.glob('2*/2*.json')
    assert json.loads(path.read_text())
    path.write_text('{"accuracy')
    run = read_run(tmp_path)
    assert run.status == BROKEN and str(path) in run.reason


@pytest.mark.parametrize(
    'content, said',
    [
        (None, 'is missing'),
        ('model = dict(', 'does not parse'),
        ('train_cfg = dict()', 'neither max_epochs nor max_iters'),
    ],
)
def test_config_of_the_run(content, said, tmp_path):
    toy_train(tmp_path)
    (path,) = tmp_path.glob('2*/vis_data/config.py')
    path.unlink()
    if content:
        path.write_text(content)
    run = read_run(tmp_path)
    assert run.status == BROKEN and said in run.reason
