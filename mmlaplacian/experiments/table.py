"""The table of experiments, ``configs/experiments.yml``.

The head of that file explains its fields.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import yaml
from mmengine.config import Config

from ..errors import InputError


@dataclass(frozen=True)
class Metric:
    """A figure and its place in the logs.

    Attributes:
        name: Such as ``'box AP'``.
        key: Name in the logs, such as ``'coco/bbox_mAP'``.
        factor: Factor that turns the logged value into percent.
    """

    name: str
    key: str
    factor: float


@dataclass(frozen=True)
class Experiment:
    """A row of the table.

    Attributes:
        id: Name of the row and of the folder of its runs.
        group: Heading.
        config: Config file, below the folder of configs.
        metrics: Figures to compare.
        hardware: Hardware that the recipe is for.
        shows: Difference from the other rows of the group.
        time: Time of one run on that hardware.
        seeds: Seeds of the runs that make up the figure.
        overrides: Dotted keys and values, as for ``--cfg-options``.
        published: Published figures in percent, by the metric's name.
        source: Publisher of these figures.
        baselines: Ids of rows that the report repeats in this group.
        starts_from: Id of the experiment whose final checkpoint is loaded.
    """

    id: str
    group: str
    config: str
    metrics: tuple[Metric, ...]
    hardware: str
    shows: str
    time: str = 'not measured'
    seeds: tuple[int, ...] = (0,)
    overrides: dict = field(default_factory=dict)
    published: dict[str, float] = field(default_factory=dict)
    source: str = ''
    baselines: tuple[str, ...] = ()
    starts_from: str | None = None

    def folder(self, root: str | Path, seed: int) -> Path:
        """Work directory of a run, ``root/ID/seedN``."""
        return Path(root, self.id, f'seed{seed}')

    def load_config(self, configs: Path) -> Config:
        """Config with the overrides.

        Args:
            configs: Folder of the configs.
        """
        config = Config.fromfile(
            configs / self.config, import_custom_modules=False
        )
        config.merge_from_dict(self.overrides)
        return config

    def published_text(self) -> str:
        """Such as ``'box AP 43.2 (paper)'``; empty without figures."""
        figures = [f'{k} {v:.1f}' for k, v in self.published.items()]
        return f'{", ".join(figures)} ({self.source})' if figures else ''


def load_experiments(path: str | Path) -> dict[str, Experiment]:
    """Read a table of experiments.

    Args:
        path: Such as ``configs/experiments.yml``.

    Returns:
        Experiments by id, in the order of the table.

    Raises:
        InputError: The file cannot be read, is not such a table, repeats an
            id, or refers to an unknown field, metric or experiment.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
        metrics = {
            name: Metric(name, **fields)
            for name, fields in content['metrics'].items()
        }
        rows = [
            _experiment(row, group, metrics)
            for group in content['groups']
            for row in group['experiments']
        ]
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as e:
        raise InputError(
            f'{path}: expected a table as the head of configs/experiments.yml '
            f'explains it: {type(e).__name__}: {e}'
        ) from e
    table = {row.id: row for row in rows}
    if len(table) < len(rows):
        ids = [row.id for row in rows]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        raise InputError(f'{path}: ids occur twice: {", ".join(twice)}')
    for row in rows:
        others = {*row.baselines, row.starts_from} - {None, *table}
        if others:
            raise InputError(f'{path}: {row.id} refers to unknown {others}')
    return table


def _experiment(row: dict, group: dict, metrics: dict) -> Experiment:
    """An experiment from its row and the defaults of its group."""
    fields = {'group': group['title'], **group, **row}
    del fields['title'], fields['experiments']
    model = fields.pop('model', '')
    changes = (
        f'{key.split(".")[-1]}={value}'
        for key, value in fields.get('overrides', {}).items()
    )
    fields.setdefault('shows', model or ', '.join(changes))
    fields['config'] = fields['config'].format(model=model)
    fields['metrics'] = tuple(metrics[name] for name in fields['metrics'])
    return Experiment(**fields)


def find_experiment(table: dict[str, Experiment], name: str) -> Experiment:
    """Row with an id.

    Raises:
        InputError: There is none; the message names similar ids.
    """
    if name not in table:
        near = get_close_matches(name, table, n=5, cutoff=0.5)
        hint = f'similar ones: {", ".join(near)}; ' if near else ''
        raise InputError(
            f'experiment: expected an id of the table, got {name!r}; {hint}'
            'tools/reproduce.py report shows all'
        )
    return table[name]
