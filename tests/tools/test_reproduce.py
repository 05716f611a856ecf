"""Commands of tools/reproduce.py."""

import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from toy_runs import toy_config, toy_train

from mmlaplacian.experiments.table import load_experiments

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / 'tools/reproduce.py'
TABLE = load_experiments(ROOT / 'configs/experiments.yml')


@pytest.fixture
def reproduce(monkeypatch, tmp_path, capfd):
    """The tool in this process, in an empty directory; returns its text."""
    monkeypatch.syspath_prepend(str(TOOL.parent))
    monkeypatch.chdir(tmp_path)
    import reproduce

    monkeypatch.setenv('OMP_NUM_THREADS', '1')

    def call(*arguments, fails=False):
        words = ['reproduce.py', *map(str, arguments)]
        monkeypatch.setattr(sys, 'argv', words)
        capfd.readouterr()
        if not fails:
            reproduce.main()
            return capfd.readouterr().out
        with pytest.raises(SystemExit) as caught:
            reproduce.main()
        return capfd.readouterr().out + str(caught.value)

    return call


def write_table(folder, *rows):
    """A table of one group; returns the option that names it."""
    content = yaml.safe_load((ROOT / 'configs/experiments.yml').read_text())
    content['groups'] = [
        dict(title='Short', hardware='here', experiments=list(rows))
    ]
    (folder / 'table.yml').write_text(yaml.safe_dump(content))
    return '--table', folder / 'table.yml'


def toy_table(folder):
    toy_config().dump(folder / 'toy.py')
    metrics = ['Top 1 Accuracy']
    row = dict(id='toy', config=f'{folder}/toy.py', metrics=metrics)
    return write_table(folder, row)


def test_model_zoo_is_what_the_tool_writes(reproduce):
    page = (ROOT / 'docs/model_zoo.md').read_text()
    assert reproduce('zoo') == page, (
        'run: python tools/reproduce.py zoo --out docs/model_zoo.md'
    )
    assert reproduce('zoo', '--out', 'zoo.md') == ''
    assert Path('zoo.md').read_text() == page


def test_report_without_work_directories(reproduce):
    text = reproduce('report')
    for name in TABLE:
        (line,) = set(
            line for line in text.splitlines() if f'| {name} |' in line
        )
        assert line.endswith('| - | not run |')
    reproduce('report', '--out', 'r.md')
    assert Path('r.md').read_text() == text
    assert not Path('work_dirs').exists()
    text = reproduce('report', '--out', 'gone/r.md', fails=True)
    assert 'gone/r.md cannot be written' in text


def test_commands_of_seeds(reproduce):
    text = reproduce(
        'run', 'mask-rcnn-tiny', '--seed', 3, 4, '--dry-run', '--amp',
        *('--from-scratch', '--cfg-options', 'log_level=DEBUG'),
    )  # fmt: skip
    head, *commands = text.splitlines()
    assert '8 GPUs x 2 images' in head and 'not measured' in head
    config = ROOT / 'configs' / TABLE['mask-rcnn-tiny'].config
    for seed in (3, 4):
        warning, train, test, *commands = commands
        assert '1 x 2 images a step, but the learning rate is for 16' in (
            warning
        )
        folder = f'work_dirs/mask-rcnn-tiny/seed{seed}'
        common = f'--work-dir {folder} --cfg-options randomness.seed={seed} '
        common += 'log_level=DEBUG'
        assert train == (
            f'{sys.executable} {ROOT}/tools/train.py {config} --amp '
            f'--from-scratch {common}'
        )
        assert test == (
            f'{sys.executable} {ROOT}/tools/test.py {config} '
            f'{folder}/epoch_12.pth {common}'
        )
    assert not commands and not Path('work_dirs').exists()


def test_commands_of_several_processes(reproduce):
    text = reproduce(
        *('run', 'retinanet-tiny', '--dry-run', '--processes', 8),
        '--auto-scale-lr',
    )
    config = ROOT / 'configs' / TABLE['retinanet-tiny'].config
    train, test = text.splitlines()[1:]
    assert train.startswith(
        f'bash {ROOT}/tools/dist_train.sh {config} 8 --auto-scale-lr --work'
    )
    assert '--auto-scale-lr' not in test
    assert shlex.split(test)[4] == '8'


def test_a_learning_rate_for_another_batch_size(reproduce, monkeypatch):
    text = reproduce('run', 'bandwidth-2', fails=True)
    assert '1 x 64 images a step, but the learning rate is for 1024' in text
    dry = ('run', 'bandwidth-2', '--dry-run')
    for consent in (
        ('--processes', 16),
        ('--auto-scale-lr',),
        ('--cfg-options', 'optim_wrapper.optimizer.lr=1e-4'),
    ):
        text = reproduce(*dry, *consent)
        assert 'images a step' not in text and 'train' in text
    monkeypatch.setenv('NNODES', '2')
    assert '32 x 64 images' in reproduce(*dry, '--processes', 16)
    assert 'images a step' not in reproduce(*dry, '--processes', 8)
    monkeypatch.setenv('NNODES', 'two')
    text = reproduce(*dry, '--processes', 8, fails=True)
    assert "NNODES: expected a number, got 'two'" in text


@pytest.mark.parametrize(
    'option, said',
    [
        ('model.backbone.arch=huge', 'would be another experiment'),
        ('randomness.seed=9', 'would be another experiment'),
        ('param_scheduler.9.end=3', 'expected KEY=VALUE'),
        ('foo', 'expected KEY=VALUE'),
    ],
)
def test_options_that_are_refused(option, said, reproduce):
    text = reproduce(
        *('run', 'mask-rcnn-tiny', '--auto-scale-lr', '--dry-run'),
        *('--cfg-options', option),
        fails=True,
    )
    assert said in text


def test_bad_names(reproduce):
    text = reproduce('run', 'retinanet-tinny', fails=True)
    assert "got 'retinanet-tinny'; similar ones: retinanet-tiny" in text
    text = reproduce('report', '--table', 'table.yml', fails=True)
    assert 'table.yml: expected a table' in text


def test_an_experiment_that_starts_from_another(reproduce):
    run = ('run', 'nuclei-mask-rcnn', '--seed', 1)
    path = 'work_dirs/digits-mask-rcnn/seed1/epoch_6.pth'
    text = reproduce(*run, fails=True)
    assert f'{path} does not exist. Run it first' in text
    assert 'run digits-mask-rcnn --seed 1' in text
    train, test = reproduce(*run, '--dry-run').splitlines()[1:]
    assert train.endswith(f'load_from={path}') and 'load_from' not in test
    begun = Path('work_dirs/nuclei-mask-rcnn/seed1')
    begun.mkdir(parents=True)
    # Without a checkpoint to resume from, the training starts anew.
    train = reproduce(*run, '--dry-run', '--resume').splitlines()[1]
    assert train.endswith(f'load_from={path}') and '--resume' not in train
    (begun / 'last_checkpoint').touch()
    train = reproduce(*run, '--dry-run', '--resume').splitlines()[1]
    assert 'load_from' not in train and '--resume' in train
    given = reproduce(*run, '--dry-run', '--cfg-options', 'load_from=a.pth')
    assert 'load_from=a.pth' in given and path not in given


def test_work_directories_are_not_spoiled(reproduce, tmp_path):
    table = toy_table(tmp_path)
    work = tmp_path / 'work_dirs/toy/seed0'
    toy_train(work, stop=7)
    text = reproduce('run', 'toy', *table, fails=True)
    assert 'unfinished run (reached epoch 2 of 3)' in text
    assert '--resume' in text
    text = reproduce('run', 'toy', *table, '--resume', '--dry-run')
    assert 'train.py' in text and '--resume' in text
    assert 'load_from' not in text
    toy_train(work, toy_config(**{'model.width': 2}))
    text = reproduce('run', 'toy', *table, fails=True)
    assert 'is invalid' in text and 'model.width is 2' in text
    text = reproduce('report', *table)
    assert '| - | invalid |' in text and 'model.width is 2' in text


def test_a_trained_run_is_only_tested(reproduce, tmp_path):
    table = toy_table(tmp_path)
    work = tmp_path / 'work_dirs/toy/seed0'
    toy_train(work)
    _, test = reproduce('run', 'toy', *table, '--dry-run').splitlines()
    assert 'tools/test.py' in test
    assert 'work_dirs/toy/seed0/epoch_3.pth' in test


@pytest.fixture
def short(tmp_path, digit_scenes, openmmlab):
    """A directory with data/digits in it, and a table of one epoch."""
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/digits').symlink_to(digit_scenes)
    row = dict(
        id='short',
        config=TABLE['digits-retinanet'].config,
        metrics=['box AP'],
        overrides={
            'train_cfg.max_epochs': 1,
            'train_dataloader.batch_size': 4,
            'auto_scale_lr.base_batch_size': 4,
            # After two steps every score is low.
            'model.test_cfg.score_thr': 0,
        },
        published={'box AP': 10.0},
        source='nobody',
    )
    return write_table(tmp_path, row)


def test_from_training_to_the_report(short, reproduce, tmp_path):
    text = reproduce('run', 'short', *short)
    folder = 'work_dirs/short/seed0'
    assert f'tools/test.py {ROOT}/configs/digits' in text
    assert f'{folder}/epoch_1.pth --work-dir {folder}' in text
    assert 'seed 0: done, in' in reproduce('run', 'short', *short)
    (log,) = tmp_path.glob(f'{folder}/2*/2*.json')
    ours = 100 * json.loads(log.read_text())['coco/bbox_mAP']
    text = reproduce('report', *short)
    assert f'| box AP {ours:.1f} ({ours - 10:+.1f}) | done |' in text


def test_a_training_that_fails_is_not_tested(short, reproduce):
    text = reproduce(
        *('run', 'short', *short, '--cfg-options'),
        'train_dataloader.dataset.data_root=gone',
        fails=True,
    )
    assert text.endswith(
        'reproduce.py: train.py failed with exit status 1; see its messages '
        'above'
    )
    assert 'tools/train.py' in text and 'tools/test.py' not in text
