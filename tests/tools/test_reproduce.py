"""tools/reproduce.py: the table, its commands and its pages."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config, DictAction
from toy_runs import toy_config, toy_train

from mmlaplacian.experiments.model_zoo import model_zoo
from mmlaplacian.experiments.table import load_experiments
from mmlaplacian.models import LaplacianAttention, LaplacianFormer

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


# The table


@pytest.mark.parametrize(
    'config', sorted({row.config for row in TABLE.values()})
)
def test_config_of_a_row(config):
    path = ROOT / 'configs' / config
    assert path.is_file()
    assert 'model' in Config.fromfile(path, import_custom_modules=False)


ATTENTION = 'model.backbone.attention.'


@pytest.mark.parametrize(
    'row',
    [
        row
        for row in TABLE.values()
        if any(key.startswith(ATTENTION) for key in row.overrides)
    ],
    ids=lambda row: row.id,
)
def test_overrides_are_arguments_of_the_attention(row):
    config = Config(dict(model=dict(backbone=dict(arch='nano'))))
    config.merge_from_dict(row.overrides)
    with torch.device('meta'):
        model = LaplacianFormer(**config.model.backbone)
    attention = model.stages[0].blocks[0].attn
    taken = dict(
        type=type(attention).__name__,
        local_kernel_size=0 if attention.local_conv is None else 3,
    )
    if isinstance(attention, LaplacianAttention):
        taken.update(
            bandwidth=attention.bandwidth,
            kernel=attention.kernel,
            landmark_pool='dwconv' if attention.landmark_conv else 'avg',
            solver=attention.solver_cfg['solver'],
            whitening=attention.kernel_cfg['whitening'],
        )
    for key, value in row.overrides.items():
        assert taken[key.removeprefix(ATTENTION)] == value


def test_other_overrides_exchange_what_is_there():
    for row in TABLE.values():
        content = Config.fromfile(
            ROOT / 'configs' / row.config, import_custom_modules=False
        )
        for key in row.overrides:
            if not key.startswith((ATTENTION, 'model.backbone.init_cfg.')):
                node = content
                for part in key.split('.'):
                    node = node[int(part) if part.isdigit() else part]


def test_every_model_is_an_experiment():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    models = [
        model['Config'].removeprefix('configs/')
        for name in index
        for model in yaml.safe_load((ROOT / name).read_text())['Models']
    ]
    plain = [
        row.config
        for row in TABLE.values()
        if not row.overrides and not row.same_run_as
    ]
    assert sorted(plain) == sorted(models)


def test_published_figures_have_a_source_and_a_metric():
    for row in TABLE.values():
        assert set(row.published) <= {metric.name for metric in row.metrics}
        assert row.source or not row.published
        assert row.seeds and row.hardware and row.time
        if row.starts_from:
            assert row.starts_from in TABLE


def test_model_zoo_is_what_the_tool_writes(reproduce):
    page = (ROOT / 'docs/model_zoo.md').read_text()
    assert reproduce('zoo') == page, (
        'run: python tools/reproduce.py zoo --out docs/model_zoo.md'
    )
    reproduce('zoo', '--out', 'zoo.md')
    assert Path('zoo.md').read_text() == page


def test_model_zoo_says_what_was_not_run(tmp_path):
    index = tmp_path / 'model-index.yml'
    index.write_text('Import: [metafile.yml]')
    row = TABLE['mask-rcnn-tiny']
    model = {
        'Name': 'name',
        'In Collection': 'Things',
        'Config': f'configs/{row.config}',
        'Metadata': {'Parameters': 1230000},
    }
    content = dict(Collections=[dict(Name='Things')], Models=[model])
    (tmp_path / 'metafile.yml').write_text(yaml.safe_dump(content))
    text = model_zoo(TABLE, index, 'command')
    paper = '43.2 (paper) | {} | 40.3 (paper) | {} |'
    assert paper.format('not run', 'not run') + ' - |' in text
    model['Results'] = [dict(Metrics={'box AP': 43})]
    model['Metadata']['Trained'] = 'twice'
    (tmp_path / 'metafile.yml').write_text(yaml.safe_dump(content))
    text = model_zoo(TABLE, index, 'command')
    assert paper.format('43.0', 'not run') + ' twice |' in text


# Commands


def test_list_from_anywhere(tmp_path):
    result = subprocess.run(
        [sys.executable, TOOL, 'list'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    # A heading, and no work_dirs here.
    assert len(lines) == 1 + len(TABLE)
    assert all('  not run  ' in line for line in lines[1:])


def test_report_without_work_directories(reproduce):
    text = reproduce('report', '--markdown', 'r.md', '--json', 'r.json')
    assert Path('r.md').read_text() == text
    for row in TABLE:
        assert f'`python tools/reproduce.py run {row}`' in text
    content = json.loads(Path('r.json').read_text())
    assert [row['id'] for row in content] == list(TABLE)
    for row in content:
        for figure in row['figures'].values():
            assert figure['ours'] is None and figure['difference'] is None
    assert not Path('work_dirs').exists()


def test_commands_of_seeds(reproduce):
    text = reproduce(
        'run', 'mask-rcnn-tiny', '--seed', 3, 4, '--dry-run', '--amp',
        *('--from-scratch', '--cfg-options', 'log_level=DEBUG'),
    )  # fmt: skip
    head, *commands = text.splitlines()
    for note in commands[::3]:
        assert '1 x 2 images a step, the learning rate is for 16' in note
    del commands[::3]
    assert '8 GPUs x 2 images' in head and 'not measured' in head
    config = ROOT / 'configs' / TABLE['mask-rcnn-tiny'].config
    expected = []
    for seed in (3, 4):
        folder = f'work_dirs/mask-rcnn-tiny/seed{seed}'
        options = f'randomness.seed={seed} log_level=DEBUG'
        expected += [
            f'{sys.executable} {ROOT}/tools/train.py {config} --work-dir '
            f'{folder} --amp --from-scratch --cfg-options {options}',
            f'{sys.executable} {ROOT}/tools/test.py {config} '
            f'"$(cat {folder}/last_checkpoint)" --work-dir {folder} '
            f'--cfg-options {options}',
        ]
    assert commands == expected
    assert not Path('work_dirs').exists()


def test_commands_of_several_processes(reproduce):
    text = reproduce(
        *('run', 'retinanet-tiny', '--dry-run', '--processes', 8),
        '--auto-scale-lr',
    )
    config = ROOT / 'configs' / TABLE['retinanet-tiny'].config
    train, test = text.splitlines()[1:]
    assert train.startswith(
        f'bash {ROOT}/tools/dist_train.sh {config} 8 --work-dir'
    )
    assert '--auto-scale-lr' in train and '--auto-scale-lr' not in test
    assert shlex.split(test)[4] == '8'


def test_overrides_reach_the_config_as_they_are(reproduce):
    """mmengine reads the words as the table has them."""
    for row in TABLE.values():
        words = [f'{key}={value}' for key, value in row.overrides.items()]
        read = dict(word.split('=', 1) for word in words)
        parsed = {
            key: DictAction._parse_iterable(value)
            for key, value in read.items()
        }
        assert parsed == row.overrides


def test_a_learning_rate_for_another_batch(reproduce):
    text = reproduce('run', 'bandwidth-2', fails=True)
    assert '1 x 64 images a step, the learning rate is for 1024' in text
    for consent in (
        ('--processes', 16),
        ('--auto-scale-lr',),
        ('--cfg-options', 'optim_wrapper.optimizer.lr=1e-4'),
    ):
        text = reproduce('run', 'bandwidth-2', '--dry-run', *consent)
        assert 'images a step' not in text and 'train' in text


@pytest.mark.parametrize(
    'option, said',
    [
        ('model.backbone.arch=huge', 'would be another experiment'),
        ('param_scheduler.9.end=3', 'expected KEY=VALUE'),
        ('foo', 'expected KEY=VALUE'),
    ],
)
def test_options_that_would_train_in_vain(option, said, reproduce):
    text = reproduce(
        *('run', 'mask-rcnn-tiny', '--auto-scale-lr', '--dry-run'),
        *('--cfg-options', option),
        fails=True,
    )
    assert said in text


def test_a_table_that_is_none(reproduce):
    for content in (None, '', 'metrics: {}', 'metrics: {}\ngroups: [1]'):
        if content is not None:
            Path('table.yml').write_text(content)
        text = reproduce('list', '--table', 'table.yml', fails=True)
        assert 'table.yml: expected a table' in text


def test_an_unknown_experiment(reproduce):
    text = reproduce('run', 'retinanet-tinny', fails=True)
    assert "got 'retinanet-tinny'; near ones: retinanet-tiny" in text
    text = reproduce('list', '--run', 'gone=.', fails=True)
    assert "got 'gone'" in text


def test_a_folder_that_is_not_there(reproduce):
    text = reproduce('list', '--run', 'retinanet-tiny=gone', fails=True)
    assert "expected ID=DIR with a work directory, got 'retinanet-tiny=" in (
        text
    )
    text = reproduce('report', '--json', 'gone/r.json', fails=True)
    assert 'gone/r.json cannot be written' in text


def test_where_an_experiment_starts_from(reproduce):
    text = reproduce('run', 'nuclei-mask-rcnn', '--seed', 1, fails=True)
    folder = Path('work_dirs/digits-mask-rcnn/seed1')
    assert 'whose last checkpoint is not in' in text
    assert f'{folder.absolute()}: run it first' in text
    assert 'run digits-mask-rcnn --seed 1' in text
    # A work directory that was moved: the note names the old place.
    folder.mkdir(parents=True)
    (folder / 'last_checkpoint').write_text('/gone/epoch_9.pth')
    (folder / 'epoch_9.pth').touch()
    dry = ('run', 'nuclei-mask-rcnn', '--dry-run', '--seed', 1)
    for options in ((), ('--resume',)):
        text = reproduce(*dry, *options)
        assert f'load_from={folder}/epoch_9.pth\n' in text
    begun = Path('work_dirs/nuclei-mask-rcnn/seed1')
    begun.mkdir(parents=True)
    (begun / 'last_checkpoint').write_text('/gone/epoch_2.pth')
    (begun / 'epoch_2.pth').touch()
    assert 'load_from' not in reproduce(*dry, '--resume')
    Path('other').mkdir()
    (folder / 'last_checkpoint').rename('other/last_checkpoint')
    Path('other/epoch_9.pth').touch()
    text = reproduce(*dry, '--run', 'digits-mask-rcnn=other')
    assert 'load_from=other/epoch_9.pth\n' in text


def toy_rows(folder):
    """A table with a toy experiment of one seed."""
    toy_config().dump(folder / 'toy.py')
    row = dict(id='toy', shows='plain', config=str(folder / 'toy.py'))
    content = dict(
        metrics=dict(top=dict(key='accuracy/top1', factor=1)),
        groups=[
            dict(
                title='Toys',
                metrics=['top'],
                hardware='here',
                time='a second',
                seeds=[0],
                experiments=[row],
            )
        ],
    )
    (folder / 'table.yml').write_text(yaml.safe_dump(content))
    return '--table', folder / 'table.yml'


def test_runs_that_must_not_be_spoiled(reproduce, tmp_path):
    table = toy_rows(tmp_path)
    work = tmp_path / 'work_dirs/toy/seed0'
    toy_train(work, stop=7)
    text = reproduce('run', 'toy', *table, fails=True)
    assert 'not finished (reached epoch 2 of 3' in text and '--resume' in text
    assert '  unfinished  ' in reproduce('list', *table)
    toy_train(work, toy_config(**{'model.width': 2}))
    text = reproduce('run', 'toy', *table, fails=True)
    assert 'mismatch' in text and 'model.width is 2' in text
    assert '  mismatch  ' in reproduce('list', *table)


def test_a_trained_run_is_only_tested(reproduce, tmp_path):
    table = toy_rows(tmp_path)
    work = tmp_path / 'work_dirs/toy/seed0'
    toy_train(work)
    lines = reproduce('run', 'toy', *table, '--dry-run').splitlines()
    assert len(lines) == 2 and f'{work}/epoch_3.pth' in lines[1]
    assert 'tools/test.py' in lines[1]


def test_several_folders_of_one_experiment(reproduce, tmp_path):
    table = toy_rows(tmp_path)
    for seed in (0, 1):
        config = toy_config(**{'randomness.seed': seed})
        toy_train(tmp_path / f'old/seed{seed}', config)
    text = reproduce('list', *table, '--run', 'toy=old')
    assert 'done, 2 of 2 runs' in text and '±' in text
    text = reproduce('run', 'toy', *table, '--run', 'toy=old', fails=True)
    assert 'expected a folder for each of the 1 seeds (0), got 2' in text


@pytest.fixture
def place(tmp_path, digit_scenes, openmmlab):
    """A directory with data/digits in it, and a table of one epoch."""
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/digits').symlink_to(digit_scenes)
    row = dict(
        id='short',
        shows='one epoch',
        config=TABLE['digits-retinanet'].config,
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
    content = yaml.safe_load((ROOT / 'configs/experiments.yml').read_text())
    content['groups'] = [
        dict(
            title='Short',
            metrics=['box AP'],
            hardware='here',
            time='soon',
            seeds=[0],
            experiments=[row, dict(row, id='long', overrides={})],
        )
    ]
    (tmp_path / 'table.yml').write_text(yaml.safe_dump(content))
    return tmp_path


def test_from_training_to_the_report(place, reproduce):
    table = ('--table', 'table.yml')
    text = reproduce('run', 'short', *table)
    folder = 'work_dirs/short/seed0'
    assert f'tools/test.py {ROOT}/configs/digits' in text
    assert f'{folder}/epoch_1.pth --work-dir {folder}' in text
    assert 'seed 0: done, in' in reproduce('run', 'short', *table)
    text = reproduce(
        *('report', *table, '--json', 'r.json', '--run', f'long={folder}')
    )
    short, long = json.loads((place / 'r.json').read_text())
    (own,) = place.glob(f'{folder}/2*/2*.json')
    ours = 100 * json.loads(own.read_text())['coco/bbox_mAP']
    assert short['status'] == 'done'
    assert short['runs'][0]['source'] == 'test of epoch_1.pth'
    assert short['figures']['box AP'] == dict(
        published=10.0, ours=ours, spread=None, difference=ours - 10
    )
    # The same logs are no run of the whole schedule.
    assert long['status'] == 'mismatch'
    assert long['figures']['box AP']['ours'] is None
    assert 'train_cfg.max_epochs is 1' in text


def test_a_training_that_fails_is_not_tested(place, reproduce):
    text = reproduce(
        *('run', 'short', '--table', 'table.yml', '--cfg-options'),
        'train_dataloader.dataset.data_root=gone',
        fails=True,
    )
    assert text.endswith(
        'reproduce.py: train.py ended with exit status 1; what it printed '
        'says why'
    )
    assert 'tools/train.py' in text and 'tools/test.py' not in text
