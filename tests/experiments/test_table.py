"""The table of experiments: its reader, and the rows of this project."""

from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config, DictAction

from mmlaplacian.errors import InputError
from mmlaplacian.experiments.model_zoo import model_zoo
from mmlaplacian.experiments.table import find_experiment, load_experiments
from mmlaplacian.models import LaplacianAttention, LaplacianFormer

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / 'configs'
TABLE = load_experiments(CONFIGS / 'experiments.yml')
ROW = dict(id='toy', config='toy.py', metrics=['top'], hardware='here')


def read(folder, *rows, **group):
    content = dict(
        metrics=dict(top=dict(key='accuracy/top1', factor=1)),
        groups=[dict(title='Toys', experiments=list(rows), **group)],
    )
    path = folder / 'table.yml'
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_experiments(path)


def test_defaults_of_a_group(tmp_path):
    table = read(
        tmp_path,
        dict(id='a', model='x'),
        dict(id='b', model='y', overrides={'k.depth': 3}, metrics=[]),
        dict(id='c', overrides={'k.depth': 3}, config='c.py', shows='deep'),
        dict(id='d', overrides={'k.depth': 3}, config='c.py'),
        config='{model}.py',
        metrics=['top'],
        hardware='here',
    )
    assert [row.config for row in table.values()] == [
        *('x.py', 'y.py', 'c.py', 'c.py')
    ]
    assert [row.shows for row in table.values()] == [
        *('x', 'y', 'deep', 'depth=3')
    ]
    assert [len(row.metrics) for row in table.values()] == [1, 0, 1, 1]
    assert {row.group for row in table.values()} == {'Toys'}


@pytest.mark.parametrize(
    'rows, said',
    [
        ([{**ROW, 'metrics': ['gone']}], 'gone'),
        ([{**ROW, 'colour': 'red'}], 'colour'),
        ([{**ROW, 'baselines': ['gone']}], "toy refers to unknown {'gone'}"),
        ([{**ROW, 'starts_from': 'gone'}], "toy refers to unknown {'gone'}"),
        ([ROW, ROW], 'ids occur twice: toy'),
        ([dict(id='toy')], 'config'),
        ([1], 'expected a table'),
    ],
)
def test_a_wrong_table(rows, said, tmp_path):
    with pytest.raises(InputError, match=said):
        read(tmp_path, *rows)


@pytest.mark.parametrize('content', [None, '', 'metrics: {}', 'a: [', '1'])
def test_no_table(content, tmp_path):
    path = tmp_path / 'table.yml'
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r'table\.yml: expected a table'):
        load_experiments(path)


def test_an_unknown_id(tmp_path):
    with pytest.raises(InputError, match="got 'tay'; similar ones: toy;"):
        find_experiment(read(tmp_path, ROW), 'tay')


# The rows of this project


@pytest.mark.parametrize(
    'config', sorted({row.config for row in TABLE.values()})
)
def test_config_of_a_row(config):
    content = Config.fromfile(CONFIGS / config, import_custom_modules=False)
    assert 'model' in content


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
            CONFIGS / row.config, import_custom_modules=False
        )
        for key in row.overrides:
            if not key.startswith((ATTENTION, 'model.backbone.init_cfg.')):
                node = content
                for part in key.split('.'):
                    node = node[int(part) if part.isdigit() else part]


def test_overrides_survive_the_command_line():
    """mmengine parses ``KEY=VALUE`` back to the values of the table."""
    for row in TABLE.values():
        for value in row.overrides.values():
            assert DictAction._parse_iterable(f'{value}') == value


def test_every_model_is_an_experiment():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    models = [
        model['Config'].removeprefix('configs/')
        for name in index
        for model in yaml.safe_load((ROOT / name).read_text())['Models']
    ]
    plain = [row.config for row in TABLE.values() if not row.overrides]
    assert sorted(plain) == sorted(models)


def test_published_figures_have_a_source_and_a_metric():
    for row in TABLE.values():
        assert set(row.published) <= {metric.name for metric in row.metrics}
        assert row.source or not row.published


def test_the_zoo_shows_figures_and_names_the_rest(tmp_path):
    index = tmp_path / 'model-index.yml'
    index.write_text('Import: [metafile.yml]')
    models = [
        {'Config': f'configs/{TABLE[name].config}', 'Metadata': metadata}
        for name, metadata in (
            ('mask-rcnn-tiny', {'Parameters': 1230000}),
            ('mask-rcnn-small', {'Parameters': 4560000, 'Trained': 'twice'}),
        )
    ]
    content = dict(Collections=[dict(Name='Things')], Models=models)
    (tmp_path / 'metafile.yml').write_text(yaml.safe_dump(content))
    text = model_zoo(TABLE, index, 'command')
    paper = '| 1.23 M | box AP 43.2, mask AP 40.3 (paper) | {} | - |'
    assert paper.format('not run') in text
    assert 'without a figure' in text and '(4.56 M).' in text
    models[1]['Results'] = [dict(Metrics={'box AP': 43})]
    (tmp_path / 'metafile.yml').write_text(yaml.safe_dump(content))
    text = model_zoo(TABLE, index, 'command')
    assert '| 4.56 M | - | box AP 43.0 | twice |' in text
    assert 'without a figure' not in text
