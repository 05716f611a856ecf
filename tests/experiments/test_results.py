"""Runs compared with their experiments."""

import math
from pathlib import Path

import pytest
from mmengine.config import Config
from toy_runs import toy_config, toy_test, toy_train

from mmlaplacian.experiments.results import (
    Summary,
    judge,
    markdown_report,
    summarize,
)
from mmlaplacian.experiments.run_logs import (
    DONE,
    INVALID,
    TRAINED,
    UNFINISHED,
)
from mmlaplacian.experiments.table import (
    Experiment,
    Metric,
    load_experiments,
)

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'


def toy(folder, config=None, **fields):
    """An experiment whose config lies in a folder."""
    (config or toy_config()).dump(folder / 'toy.py')
    row = dict(
        id='toy',
        group='Toys',
        config='toy.py',
        metrics=(Metric('top', 'accuracy/top1', 1),),
        hardware='here',
        shows='plain',
        published=dict(top=90.0),
        source='paper',
    )
    return Experiment(**{**row, **fields})


def with_value(value, **changes):
    return toy_config(**{'test_evaluator.value': value, **changes})


def run(folder, config=None, seed=0, tested=None):
    """Train and test in the work directory of a seed."""
    config = (config or toy_config()).copy()
    config.randomness = dict(seed=seed)
    work = folder / f'toy/seed{seed}'
    toy_train(work, config)
    toy_test(work, 'epoch_3.pth', tested or config)
    return work


def test_figures_of_a_finished_run(tmp_path):
    config = with_value(91)
    work = run(tmp_path, config)
    outcome = judge(toy(tmp_path, config), tmp_path, 0, tmp_path)
    assert outcome.status == DONE and not outcome.notes
    assert outcome.folder == work and outcome.figures == dict(top=91.0)


def test_a_test_with_other_settings_does_not_count(tmp_path):
    run(tmp_path, tested=with_value(99))
    outcome = judge(toy(tmp_path), tmp_path, 0, tmp_path)
    assert outcome.status == TRAINED and not outcome.figures
    assert 'the test does not count' in outcome.notes[0]
    assert 'test_evaluator.value is 99' in outcome.notes[0]
    toy_test(tmp_path / 'toy/seed0', 'epoch_3.pth')
    assert judge(toy(tmp_path), tmp_path, 0, tmp_path).status == DONE


@pytest.mark.parametrize(
    'changes, said',
    [
        ({'model.width': 2}, 'model.width is 2, the experiment has None'),
        ({'train_cfg.max_epochs': 1}, 'max_epochs is 1, the experiment has 3'),
        ({'train_dataloader.dataset.a': 1}, 'train_dataloader.dataset.a is 1'),
        ({'randomness.seed': 7}, 'randomness.seed is 7, the experiment has 0'),
    ],
)
def test_a_run_with_other_settings_is_invalid(changes, said, tmp_path):
    work = run(tmp_path)
    # Changed in the log, since the toy dataset would refuse the argument.
    for path in work.glob('2*/vis_data/config.py'):
        logged = Config.fromfile(path)
        logged.merge_from_dict(changes)
        logged.dump(path)
    outcome = judge(toy(tmp_path), tmp_path, 0, tmp_path)
    assert outcome.status == INVALID and not outcome.figures
    assert said in outcome.notes[0]


def test_overrides_belong_to_the_experiment(tmp_path):
    run(tmp_path, toy_config(**{'model.width': 2}))
    row = toy(tmp_path, overrides={'model.width': 2})
    assert judge(row, tmp_path, 0, tmp_path).status == DONE
    assert judge(toy(tmp_path), tmp_path, 0, tmp_path).status == INVALID


def test_settings_of_the_machine_are_reported(tmp_path):
    toy_train(tmp_path / 'begin')
    config = toy_config(
        **{
            'optim_wrapper.optimizer.lr': 0.02,
            'default_hooks.ema.type': 'EMAHook',
            'load_from': str(tmp_path / 'begin/epoch_1.pth'),
        }
    )
    run(tmp_path, config)
    outcome = judge(toy(tmp_path), tmp_path, 0, tmp_path)
    assert outcome.status == DONE
    assert outcome.notes == (
        f'started from {config.load_from}',
        'optim_wrapper.optimizer.lr is 0.02, the config has 0.01',
        'default_hooks.ema.type is EMAHook, the config has None',
    )


@pytest.mark.parametrize('value', [-1, math.nan])
def test_a_figure_that_is_no_result(value, tmp_path):
    # A config with NaN would differ from itself.
    config = with_value(value if value == -1 else 'nan')
    run(tmp_path, config)
    outcome = judge(toy(tmp_path, config), tmp_path, 0, tmp_path)
    assert outcome.status == INVALID and not outcome.figures
    assert f'of the test is {float(value)}' in outcome.notes[0]


def test_a_metric_that_was_not_evaluated(tmp_path):
    run(tmp_path)
    metrics = (Metric('box AP', 'coco/bbox_mAP', 100),)
    row = toy(tmp_path, metrics=metrics)
    outcome = judge(row, tmp_path, 0, tmp_path)
    assert outcome.status == INVALID
    assert 'no coco/bbox_mAP, it has accuracy/top1' in outcome.notes[0]


def test_mean_deviation_and_difference(tmp_path):
    row = toy(tmp_path, seeds=(0, 1))
    values = []
    for seed in (0, 1):
        # The evaluator without a value counts upwards.
        run(tmp_path, seed=seed)
        values.append(judge(row, tmp_path, seed, tmp_path).figures['top'])
    mean, deviation = sum(values) / 2, abs(values[1] - values[0]) / 2**0.5
    killed = toy_config(**{'randomness.seed': 2})
    toy_train(tmp_path / 'toy/seed2', killed, stop=7)
    (tmp_path / 'toy/seed0_old').mkdir()
    summaries = summarize(dict(toy=row), tmp_path, tmp_path)
    summary = summaries['toy']
    assert [each.status for each in summary.outcomes] == [
        *(DONE, DONE, UNFINISHED)
    ]
    assert summary.status() == 'done, 2 of 3 runs; unfinished, 1 of 3 runs'
    ours = f'top {mean:.1f} ± {deviation:.1f} ({mean - 90:+.1f})'
    assert summary.ours_text() == ours
    text = markdown_report(summaries)
    assert f'| toy | plain | top 90.0 (paper) | {ours} | done, 2 of' in text
    assert f'- {tmp_path}/toy/seed2 (unfinished): reached epoch 2' in text


def test_one_run_has_no_deviation(tmp_path):
    config = with_value(5)
    run(tmp_path, config)
    row = toy(tmp_path, config)
    outcome = judge(row, tmp_path, 0, tmp_path)
    summary = Summary(row, (outcome,))
    assert summary.status() == 'done'
    assert summary.ours_text() == 'top 5.0 (-85.0)'


def test_without_runs_there_is_no_figure(tmp_path):
    row = toy(tmp_path)
    other = toy(tmp_path, id='other', group='More', baselines=('toy',))
    table = dict(toy=row, other=other)
    text = markdown_report(summarize(table, tmp_path, tmp_path / 'gone'))
    line = '| toy | plain | top 90.0 (paper) | - | not run |'
    # The row is in its own group, and a baseline of the other.
    assert text.count(line) == 2


def test_a_log_of_segmentation(tmp_path):
    row = load_experiments(CONFIGS / 'experiments.yml')['nuclei-semantic-fpn']
    config = row.load_config(CONFIGS)
    config.merge_from_dict({'randomness.seed': 0})
    # tools/train.py changes these, on a CPU and for data elsewhere.
    config.model.decode_head.norm_cfg.type = 'BN'
    config.train_dataloader.dataset.data_root = '/elsewhere'
    total = config.train_cfg.max_epochs
    for name, text in (
        ('20260101_000000', f'{{"loss": 0.07, "epoch": {total}, "iter": 9}}'),
        ('20260101_000001', '{"aAcc": 97.72, "mIoU": 92.1, "mAcc": 95.71}'),
    ):
        session = row.folder(tmp_path, 0) / name
        (session / 'vis_data').mkdir(parents=True)
        config.dump(session / 'vis_data/config.py')
        config.load_from = f'/elsewhere/epoch_{total}.pth'
        (session / f'{name}.json').write_text(text)
    trained = session.with_name('20260101_000000')
    log = trained / f'{trained.name}.json'
    log.rename(trained / 'vis_data' / log.name)
    outcome = judge(row, tmp_path, 0, CONFIGS)
    assert outcome.status == DONE and not outcome.notes
    assert outcome.figures == dict(mIoU=pytest.approx(92.1))
