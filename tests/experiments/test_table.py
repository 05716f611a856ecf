"""Runs beside their experiments: what counts, and what is said of it."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config
from toy_runs import toy_config, toy_test, toy_train

from mmlaplacian.errors import InputError
from mmlaplacian.experiments import table as experiments
from mmlaplacian.experiments.run_logs import BROKEN, DONE, UNFINISHED
from mmlaplacian.experiments.table import MISMATCH, judge, load_experiments

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
ROW = dict(
    id='toy',
    shows='plain',
    config='toy.py',
    metrics=['top'],
    published=dict(top=90.0),
    source='paper',
    hardware='here',
    time='a second',
    seeds=[0, 1],
)


def toy_table(folder, *rows, metrics=None, config=None):
    """A table with its config file, both in a folder."""
    (config or toy_config()).dump(folder / 'toy.py')
    content = dict(
        metrics=metrics or dict(top=dict(key='accuracy/top1', factor=1)),
        groups=[dict(title='Toys', experiments=list(rows or [ROW]))],
    )
    path = folder / 'table.yml'
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_experiments(path)


def with_value(value):
    return toy_config(
        **{'val_evaluator.value': value, 'test_evaluator.value': value}
    )


def test_the_test_run_counts_before_the_validation(tmp_path):
    row = toy_table(tmp_path)['toy']
    toy_train(tmp_path / 'run')
    outcome = judge(row, tmp_path / 'run', tmp_path)
    assert outcome.status == DONE and not outcome.notes and outcome.seed == 0
    assert outcome.source == 'validation of epoch 3' and not outcome.tested
    toy_test(tmp_path / 'run', 'epoch_3.pth')
    tested = judge(row, tmp_path / 'run', tmp_path)
    assert tested.source == 'test of epoch_3.pth' and tested.tested
    assert tested.figures['top'] == outcome.figures['top'] + 1


def test_a_test_of_another_model_does_not_count(tmp_path):
    row = toy_table(tmp_path)['toy']
    toy_train(tmp_path / 'run')
    config = toy_config(test_evaluator=dict(type='ToyMetric', value=99))
    toy_test(tmp_path / 'run', 'epoch_3.pth', config)
    outcome = judge(row, tmp_path / 'run', tmp_path)
    assert outcome.source == 'validation of epoch 3'


@pytest.mark.parametrize(
    'changes, said',
    [
        ({'model.width': 2}, 'model.width is 2, the experiment has None'),
        ({'train_cfg.max_epochs': 1}, 'max_epochs is 1, the experiment has 3'),
        ({'train_dataloader.dataset.a': 1}, 'train_dataloader.dataset.a is 1'),
        ({'val_evaluator.value': 7}, 'val_evaluator.value is 7'),
    ],
)
def test_a_run_of_another_config(changes, said, tmp_path):
    row = toy_table(tmp_path)['toy']
    config = toy_config()
    toy_train(tmp_path / 'run', config)
    # As it was dumped: an unknown dataset argument would not train.
    (path,) = (tmp_path / 'run').glob('2*/vis_data/config.py')
    dumped = Config.fromfile(path)
    dumped.merge_from_dict(changes)
    dumped.dump(path)
    outcome = judge(row, tmp_path / 'run', tmp_path)
    assert outcome.status == MISMATCH and not outcome.figures
    assert said in outcome.notes[0]


def test_overrides_belong_to_the_experiment(tmp_path):
    wide = {**ROW, 'id': 'wide', 'overrides': {'model.width': 2}}
    table = toy_table(tmp_path, ROW, wide)
    toy_train(tmp_path / 'run', toy_config(**{'model.width': 2}))
    assert judge(table['wide'], tmp_path / 'run', tmp_path).status == DONE
    outcome = judge(table['toy'], tmp_path / 'run', tmp_path)
    assert outcome.status == MISMATCH


def test_what_a_machine_may_change_is_said(tmp_path):
    row = toy_table(tmp_path)['toy']
    config = toy_config(**{'optim_wrapper.optimizer.lr': 0.02})
    toy_train(tmp_path / 'begin')
    config.load_from = str(tmp_path / 'begin/epoch_1.pth')
    toy_train(tmp_path / 'run', config)
    outcome = judge(row, tmp_path / 'run', tmp_path)
    assert outcome.status == DONE
    assert outcome.notes == (
        f'started from {config.load_from}',
        'optim_wrapper.optimizer.lr is 0.02, the config says 0.01',
    )


def test_averaged_weights_are_said(tmp_path):
    row = toy_table(tmp_path)['toy']
    toy_train(
        tmp_path / 'run', toy_config(**{'default_hooks.ema.type': 'EMAHook'})
    )
    (note,) = judge(row, tmp_path / 'run', tmp_path).notes
    assert note == 'default_hooks.ema.type is EMAHook, the config says None'


def test_a_learning_rate_for_another_batch_is_said(tmp_path):
    def config(**scale):
        return toy_config(auto_scale_lr=dict(base_batch_size=4, **scale))

    row = toy_table(tmp_path, config=config(enable=False))['toy']
    toy_train(tmp_path / 'run', config(enable=False))
    (note,) = judge(row, tmp_path / 'run', tmp_path).notes
    assert note == '1 x 1 images a step, the learning rate is for 4'
    toy_train(tmp_path / 'scaled', config(enable=True))
    (note,) = judge(row, tmp_path / 'scaled', tmp_path).notes
    assert note.startswith('auto_scale_lr.enable is True')


@pytest.mark.parametrize('value', [-1, math.nan])
def test_a_figure_that_is_none(value, tmp_path):
    # NaN differs from itself: the config of the experiment must not hold it.
    config = with_value(value if value == -1 else 'nan')
    row = toy_table(tmp_path, config=config)['toy']
    toy_train(tmp_path / 'run', config)
    outcome = judge(row, tmp_path / 'run', tmp_path)
    assert outcome.status == BROKEN and not outcome.figures
    assert f'validation of epoch 3 is {float(value)}' in outcome.notes[0]


def test_a_metric_that_the_log_has_not(tmp_path):
    metrics = dict(top=dict(key='coco/bbox_mAP', factor=100))
    row = toy_table(tmp_path, metrics=metrics)['toy']
    toy_train(tmp_path / 'run')
    outcome = judge(row, tmp_path / 'run', tmp_path)
    assert outcome.status == BROKEN
    assert 'no coco/bbox_mAP, it has accuracy/top1' in outcome.notes[0]


def test_a_killed_run_gives_no_figure(tmp_path):
    row = toy_table(tmp_path, config=with_value(5))['toy']
    toy_train(tmp_path / 'run', with_value(5), stop=7)
    outcome = judge(row, tmp_path / 'run', tmp_path)
    assert outcome.status == UNFINISHED and not outcome.figures
    assert 'epoch 2 of 3' in outcome.notes[0]
    assert outcome.notes[1] == 'validation of epoch 1, not the end: top 5.0'


def test_mean_spread_and_difference(tmp_path):
    table = toy_table(tmp_path, config=with_value(5))
    # The value is no setting of the experiment here.
    root = tmp_path / 'work'
    for seed, value in enumerate((88.0, 91.0)):
        config = with_value(5)
        config.randomness.seed = seed
        toy_train(root / f'toy/seed{seed}', config)
        path = max((root / f'toy/seed{seed}').glob('2*/vis_data/2*.json'))
        lines = path.read_text().splitlines()
        last = {**json.loads(lines[-1]), 'accuracy/top1': value}
        path.write_text('\n'.join([*lines[:-1], json.dumps(last)]))
    toy_train(root / 'toy/seed2', with_value(5), stop=7)
    (summary,) = experiments.summarize(table, tmp_path, root)
    assert summary.status == 'done, 2 of 3 runs; unfinished'
    assert [each.seed for each in summary.done] == [0, 1]
    assert summary.mean('top') == 89.5
    assert summary.spread('top') == pytest.approx(1.5 * 2**0.5)
    assert summary.difference('top') == -0.5
    text = experiments.markdown_report([summary], 'run')
    assert '| 90.0 (paper) | 89.5 ± 2.1 | -0.5 | done, 2 of 3 runs' in text
    assert f'- toy, {root}/toy/seed2 (unfinished): reached epoch 2' in text


def test_what_is_no_run_of_its_own_does_not_count(tmp_path):
    table = toy_table(tmp_path)
    root = tmp_path / 'runs'
    toy_train(root / 'toy/seed0')
    for name in ('seed0_bad', 'seed1'):
        shutil.copytree(root / 'toy/seed0', root / 'toy' / name)
    again = dict(toy=[tmp_path / 'runs/toy/../toy/seed0'])
    (summary,) = experiments.summarize(table, tmp_path, root, again)
    assert [each.folder.name for each in summary.outcomes] == [
        'seed0',
        'seed1',
    ]
    assert len(summary.values('top')) == 1 and 'repeated' in summary.status
    assert 'seed 0 is counted already' in summary.outcomes[1].notes[0]


def test_one_run_has_no_spread(tmp_path):
    table = toy_table(tmp_path, config=with_value(5))
    toy_train(tmp_path / 'elsewhere', with_value(5))
    (summary,) = experiments.summarize(
        table, tmp_path, tmp_path / 'gone', dict(toy=[tmp_path / 'elsewhere'])
    )
    assert summary.status == 'done, 1 of 2 runs'
    assert experiments.ours_text(summary, 'top') == '5.0'
    (row,) = experiments.json_report([summary], 'run')
    assert row['figures']['top'] == dict(
        published=90.0, ours=5.0, spread=None, difference=-85.0
    )


def test_what_was_not_run_has_no_number(tmp_path):
    table = toy_table(tmp_path)
    (summary,) = experiments.summarize(table, tmp_path, tmp_path / 'gone')
    (row,) = experiments.json_report([summary], 'reproduce run')
    assert row['status'] == 'not run' and row['runs'] == []
    assert row['command'] == 'reproduce run toy'
    figure = row['figures']['top']
    assert figure.pop('published') == 90.0
    assert set(figure.values()) == {None}
    text = experiments.markdown_report([summary], 'reproduce run')
    assert '| not run |  | `reproduce run toy` |' in text


def test_rows_that_share_a_run(tmp_path):
    same = dict(id='again', shows='the default', same_run_as='toy')
    table = toy_table(tmp_path, ROW, same)
    toy_train(tmp_path / 'work/toy/seed0')
    first, second = experiments.summarize(table, tmp_path, tmp_path / 'work')
    assert second.outcomes == first.outcomes and second.done
    assert second.experiment.published == dict(top=90.0)
    assert second.experiment.shows == 'the default'


#: Lines of a log of configs/nuclei/semantic-fpn_..., shortened.
SEGMENTATION = """\
{"lr": 4.01e-05, "loss": 0.0758106, "epoch": 8, "iter": 160, "step": 160}
{"aAcc": 97.7200, "mIoU": 92.0999, "mAcc": 95.7099, "step": 8}
"""


def test_a_segmentation_log(tmp_path):
    row = load_experiments(CONFIGS / 'experiments.yml')['nuclei-semantic-fpn']
    # As long as the log.
    row = replace(row, overrides={'train_cfg.max_epochs': 8})
    config = row.load_config(CONFIGS)
    # What tools/train.py changes, on a CPU and for data elsewhere.
    config.model.decode_head.norm_cfg.type = 'BN'
    config.train_dataloader.dataset.data_root = '/elsewhere'
    session = tmp_path / '20260101_000000'
    (session / 'vis_data').mkdir(parents=True)
    config.dump(session / 'vis_data/config.py')
    path = session / 'vis_data' / f'{session.name}.json'
    path.write_text(SEGMENTATION)
    outcome = judge(row, tmp_path, CONFIGS)
    assert outcome.status == DONE and not outcome.notes
    assert outcome.figures == dict(mIoU=pytest.approx(92.1, abs=1e-3))


def test_an_unknown_id_lists_near_ones(tmp_path):
    with pytest.raises(InputError, match="got 'tay'; near ones: toy;"):
        experiments.find_experiment(toy_table(tmp_path), 'tay')


@pytest.mark.parametrize(
    'row, said',
    [
        ({**ROW, 'metrics': ['gone']}, "toy: 'gone'"),
        ({**ROW, 'colour': 'red'}, 'colour'),
        (dict(id='b', shows='', same_run_as='gone'), "b: 'gone'"),
    ],
)
def test_a_wrong_table(row, said, tmp_path):
    with pytest.raises(InputError, match=said):
        toy_table(tmp_path, row)


def test_an_id_that_occurs_twice(tmp_path):
    with pytest.raises(InputError, match='toy occurs twice'):
        toy_table(tmp_path, ROW, ROW)
