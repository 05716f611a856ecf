"""The table of experiments, and what work directories say of each.

The table is ``configs/experiments.yml``; its head explains the fields.
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import mmengine
from mmengine.config import Config

from ..errors import InputError
from .run_logs import BROKEN, DONE, NOT_RUN, UNFINISHED, Result, Run, read_run

#: State of a folder that holds the run of something else.
MISMATCH = 'mismatch'
#: State of a second run with the same seed, which a spread must not count.
REPEATED = 'repeated'
#: What must be as the experiment says for a figure to be its figure.
DECISIVE = (
    'model',
    'train_cfg.type',
    'train_cfg.max_epochs',
    'train_cfg.max_iters',
    'train_dataloader.dataset',
    '{split}_dataloader.dataset',
    '{split}_evaluator',
)
#: What may differ with the machine, and is said.
NOTED = (
    'optim_wrapper',
    'param_scheduler',
    'auto_scale_lr.enable',
    'train_dataloader.batch_size',
    'train_dataloader.sampler',
    'default_hooks.ema',
    'custom_hooks',
)
#: Where data lie and weights come from.
PLACES = {
    *('ann_file', 'backend_args', 'data_prefix', 'data_root', 'init_cfg'),
}


@dataclass(frozen=True)
class Metric:
    """A figure and where the logs have it.

    Attributes:
        name: Such as ``'box AP'``.
        key: In the logs, such as ``'coco/bbox_mAP'``.
        factor: Makes the value of the log percent.
    """

    name: str
    key: str
    factor: float


@dataclass(frozen=True)
class Experiment:
    """A row of the table; :func:`load_experiments` makes it.

    Attributes:
        id: Its name.
        shows: What differs from the other rows of the group.
        group: Heading.
        config: Config file, below the folder of configs.
        overrides: Dotted keys and values, as for ``--cfg-options``.
        metrics: What is compared.
        published: Published figures in percent, by the metric's name.
        source: Who published them.
        hardware, time: What a run needs.
        seeds: Of the runs that make up the figure.
        starts_from: Experiment whose last checkpoint this one starts from.
        same_run_as: Experiment whose runs and published figures are this
            one's, too.
    """

    id: str
    shows: str
    group: str
    config: str
    metrics: tuple[Metric, ...]
    hardware: str
    time: str
    seeds: tuple[int, ...]
    overrides: dict = field(default_factory=dict)
    published: dict[str, float] = field(default_factory=dict)
    source: str = ''
    starts_from: str | None = None
    same_run_as: str | None = None

    @property
    def run_id(self) -> str:
        """Name of the folder of its runs."""
        return self.same_run_as or self.id

    def folder(self, root: str | Path, seed: int) -> Path:
        """Work directory of a seed below the folder of all of them."""
        return Path(root, self.run_id, f'seed{seed}')

    def load_config(self, configs: Path) -> Config:
        """The config with the overrides.

        Args:
            configs: Folder of the configs.
        """
        config = Config.fromfile(
            configs / self.config, import_custom_modules=False
        )
        config.merge_from_dict(self.overrides)
        return config


def load_experiments(path: str | Path) -> dict[str, Experiment]:
    """Read a table of experiments.

    Args:
        path: Such as ``configs/experiments.yml``.

    Returns:
        Experiments by id, in the order of the table.

    Raises:
        InputError: The file cannot be read or is no such table, an id occurs
            twice, or a row names a field, a metric or an experiment that
            there is not.
    """
    try:
        return _read_table(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f'{path}: expected a table as configs/experiments.yml explains '
            f'it: {type(error).__name__}: {error}'
        ) from error


def _read_table(path: str | Path) -> dict[str, Experiment]:
    content = mmengine.load(path)
    metrics = {
        name: Metric(name, **fields)
        for name, fields in content['metrics'].items()
    }
    table: dict[str, Experiment] = {}
    for group in content['groups']:
        rows = group.pop('experiments')
        common = dict(group=group.pop('title'), **group)
        for row in rows:
            merged = {**common, **row}
            name = merged['id']
            if name in table:
                raise InputError(f'{path}: the id {name} occurs twice')
            try:
                if same := merged.get('same_run_as'):
                    own = {k: merged[k] for k in ('id', 'shows', 'group')}
                    table[name] = replace(table[same], same_run_as=same, **own)
                    continue
                merged['metrics'] = tuple(
                    metrics[metric] for metric in merged['metrics']
                )
                merged['seeds'] = tuple(merged['seeds'])
                table[name] = Experiment(**merged)
            except (KeyError, TypeError) as error:
                raise InputError(f'{path}: {name}: {error}') from error
    return table


def find_experiment(table: dict[str, Experiment], name: str) -> Experiment:
    """A row by its id.

    Raises:
        InputError: There is none; names near ones.
    """
    if name not in table:
        near = get_close_matches(name, table, n=5, cutoff=0.5)
        hint = f'near ones: {", ".join(near)}; ' if near else ''
        raise InputError(
            f'experiment: expected an id of the table, got {name!r}; {hint}'
            'tools/reproduce.py list shows all'
        )
    return table[name]


@dataclass(frozen=True)
class Outcome:
    """A run beside its experiment.

    Attributes:
        folder: Work directory.
        status: Of :class:`Run`, :data:`MISMATCH` or :data:`REPEATED`.
        figures: In percent, by the metric's name; empty unless done.
        source: Which evaluation gave them.
        seed: Of the run; None where the config sets none.
        notes: Why it is not done, or what to know of the figures.
    """

    folder: Path
    status: str
    figures: dict[str, float] = field(default_factory=dict)
    source: str = ''
    seed: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def tested(self) -> bool:
        """Whether the figures are of a test run."""
        return self.source.startswith('test ')


def judge(experiment: Experiment, folder: Path, configs: Path) -> Outcome:
    """Compare a work directory with an experiment.

    The figures are those of the newest test run of the last checkpoint, and
    without one those of the validation after the last epoch or iteration.

    Args:
        experiment: The row.
        folder: Work directory; may be missing.
        configs: Folder of the configs.
    """
    run = read_run(folder)
    if run.config is None:
        notes = (run.reason,) if run.status != NOT_RUN else ()
        return Outcome(folder, run.status, notes=notes)
    seed = (run.config.get('randomness') or {}).get('seed')
    outcome = Outcome(folder, run.status, seed=seed)
    expected = experiment.load_config(configs)
    wrong = differences(run.config, expected)
    if run.status != DONE and not wrong:
        return replace(outcome, notes=_why_not_done(experiment, run))
    for result in () if wrong else run.results:
        wrong = differences(result.config, expected, result.split)
        if not wrong:
            return _with_figures(experiment, run, result, expected, outcome)
    return replace(outcome, status=MISMATCH, notes=(_mismatch(wrong),))


def _why_not_done(experiment: Experiment, run: Run) -> tuple[str, ...]:
    notes = [run.reason]
    if run.last_validation:
        source, values = run.last_validation
        shown = ', '.join(
            f'{metric.name} {metric.factor * values[metric.key]:.1f}'
            for metric in experiment.metrics
            if metric.key in values
        )
        notes.append(f'{source}, not the end: {shown}')
    if run.status == UNFINISHED:
        notes.append('still running, or stopped: --resume goes on')
    return tuple(notes)


def _with_figures(
    experiment: Experiment,
    run: Run,
    result: Result,
    expected: Config,
    outcome: Outcome,
) -> Outcome:
    figures, broken = {}, []
    for metric in experiment.metrics:
        value = result.metrics.get(metric.key)
        if value is None:
            known = ', '.join(result.metrics) or 'nothing'
            broken.append(
                f'{result.source} has no {metric.key}, it has {known}'
            )
        # COCO's evaluation gives -1 where there is nothing to find.
        elif not math.isfinite(value) or value < 0:
            broken.append(f'{metric.key} of the {result.source} is {value}')
        else:
            figures[metric.name] = metric.factor * value
    if broken:
        return replace(outcome, status=BROKEN, notes=tuple(broken))
    notes = [
        f'{key} is {got}, the config says {want}'
        for key, got, want in _compare(run.config, expected, NOTED)
    ]
    if run.processes:
        notes += batch_troubles(run.config, run.processes)
    start = _start(run.start)
    if experiment.starts_from or start != _start(expected):
        notes.insert(0, f'started from {start}')
    return replace(
        outcome, figures=figures, source=result.source, notes=tuple(notes)
    )


def batch_troubles(config: Config, processes: int) -> list[str]:
    """Say, in one sentence or none, that the learning rate is for others.

    Args:
        config: ``auto_scale_lr`` says for which total batch size the learning
            rate is, and whether it is scaled.
        processes: Each of which takes a batch.
    """
    scale = config.get('auto_scale_lr') or {}
    base = scale.get('base_batch_size')
    own = config.train_dataloader.batch_size
    own *= config.optim_wrapper.get('accumulative_counts', 1)
    if scale.get('enable') or base in (None, own * processes):
        return []
    return [
        f'{processes} x {own} images a step, the learning rate is for {base}'
    ]


def _start(config: Config) -> str:
    """Where the first weights of a training come from."""
    if config.get('load_from'):
        return config.load_from
    init_cfg = config.model.get('backbone', {}).get('init_cfg') or {}
    return init_cfg.get('checkpoint') or 'random weights'


def differences(
    ran: Config, expected: Config, split: str | None = None
) -> list[tuple[str, object, object]]:
    """Settings that make a run another experiment's.

    Where data lie, where weights come from, and SyncBN or BN do not count.

    Args:
        ran: Config of the run.
        expected: Config of the experiment.
        split: ``'val'`` or ``'test'``: what the figures were taken from.
            Default: None, the training alone.

    Returns:
        Key, value of the run, value of the experiment; None where not set.
    """
    keys = [
        key.format(split=split)
        for key in DECISIVE
        if split or '{split}' not in key
    ]
    return _compare(ran, expected, keys)


def _compare(ran: Config, expected: Config, keys: Iterable[str]) -> list:
    ours, theirs = (
        dict(_flatten(config.to_dict())) for config in (ran, expected)
    )
    return [
        (name, ours.get(name), theirs.get(name))
        for name in dict.fromkeys([*theirs, *ours])
        if any(f'{name}.'.startswith(f'{key}.') for key in keys)
        and ours.get(name) != theirs.get(name)
    ]


def _flatten(node, name: str = '') -> Iterator[tuple[str, object]]:
    """Leaves of nested dicts and lists, by their dotted key."""
    if isinstance(node, dict):
        items = [(k, v) for k, v in node.items() if k not in PLACES]
    elif isinstance(node, (list, tuple)):
        items = list(enumerate(node))
    else:
        yield name, 'BN' if node == 'SyncBN' else node
        return
    for key, child in items:
        yield from _flatten(child, f'{name}.{key}' if name else str(key))


def _mismatch(wrong: list[tuple[str, object, object]]) -> str:
    shown = '; '.join(
        f'{key} is {got}, the experiment has {want}'
        for key, got, want in wrong[:3]
    )
    more = f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''
    return f'the run of another config: {shown}{more}'


@dataclass(frozen=True)
class Summary:
    """An experiment and all its runs.

    Attributes:
        experiment: The row.
        outcomes: Its runs.
    """

    experiment: Experiment
    outcomes: tuple[Outcome, ...]

    @property
    def done(self) -> list[Outcome]:
        """Runs with figures."""
        return [each for each in self.outcomes if each.status == DONE]

    @property
    def status(self) -> str:
        """State in words."""
        parts = []
        if self.done:
            planned = max(len(self.experiment.seeds), len(self.outcomes))
            parts.append(
                f'{DONE}, {len(self.done)} of {planned} runs'
                if planned > 1
                else DONE
            )
        for status in (UNFINISHED, BROKEN, MISMATCH, REPEATED):
            count = sum(each.status == status for each in self.outcomes)
            if count:
                parts.append(status if count == 1 else f'{count} {status}')
        return '; '.join(parts) or NOT_RUN

    def values(self, metric: str) -> list[float]:
        """Figures of the runs that are done, in percent."""
        return [each.figures[metric] for each in self.done]

    def mean(self, metric: str) -> float | None:
        """Mean over the runs that are done; None without any."""
        values = self.values(metric)
        return statistics.fmean(values) if values else None

    def spread(self, metric: str) -> float | None:
        """Sample standard deviation; None for fewer than two runs."""
        values = self.values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def difference(self, metric: str) -> float | None:
        """Ours less the published figure; None where one is missing."""
        mean = self.mean(metric)
        published = self.experiment.published.get(metric)
        if mean is None or published is None:
            return None
        return mean - published


def summarize(
    table: dict[str, Experiment],
    configs: Path,
    root: str | Path,
    given: dict[str, list[Path]] | None = None,
) -> list[Summary]:
    """Every experiment with what its work directories hold.

    Args:
        table: Experiments by id.
        configs: Folder of the configs.
        root: Holds ``ID/seedN`` for each run; may be missing.
        given: More work directories, by the experiment's id.
    """
    summaries = []
    for experiment in table.values():
        folders = seed_folders(Path(root, experiment.run_id))
        folders += (given or {}).get(experiment.run_id, [])
        folders = {path.resolve(): path for path in folders}.values()
        outcomes = [judge(experiment, path, configs) for path in folders]
        summaries.append(Summary(experiment, _count_once(outcomes)))
    return summaries


def seed_folders(folder: Path) -> list[Path]:
    """The work directories ``seedN`` in the folder of an experiment."""
    names = re.compile(r'seed\d+')
    return sorted(p for p in folder.glob('seed*') if names.fullmatch(p.name))


def _count_once(outcomes: list[Outcome]) -> tuple[Outcome, ...]:
    counted: dict[int, Path] = {}
    for i, each in enumerate(outcomes):
        if each.status != DONE or each.seed is None:
            continue
        first = counted.setdefault(each.seed, each.folder)
        if first is not each.folder:
            note = f'seed {each.seed} is counted already, from {first}'
            outcomes[i] = replace(
                each, status=REPEATED, figures={}, notes=(note,)
            )
    return tuple(outcomes)


def published_text(experiment: Experiment, metric: str) -> str:
    """Such as ``'43.2 (paper)'``; a dash where nothing was published."""
    value = experiment.published.get(metric)
    return '-' if value is None else f'{value:.1f} ({experiment.source})'


def ours_text(summary: Summary, metric: str) -> str:
    """Such as ``'43.0 ± 0.2'``, or why there is no figure."""
    mean, spread = summary.mean(metric), summary.spread(metric)
    if mean is None:
        return summary.status
    return f'{mean:.1f}' + ('' if spread is None else f' ± {spread:.1f}')


def markdown_report(summaries: list[Summary], command: str) -> str:
    """Tables of published and own figures, a heading for each group.

    Args:
        summaries: Of :func:`summarize`.
        command: What runs an experiment, before its id.
    """
    lines = [
        '# Published figures and ours',
        '',
        'In percent. Ours: the test run of the last checkpoint or, without '
        'one, the validation after the last epoch or iteration, as the last '
        'column says; ± is the standard deviation over runs.',
    ]
    for group in dict.fromkeys(each.experiment.group for each in summaries):
        members = [s for s in summaries if s.experiment.group == group]
        lines += ['', f'## {group}', '', *_rows(members, command)]
        notes = list(_notes(members))
        lines += ['', *notes] if notes else []
    return '\n'.join(lines) + '\n'


def _rows(members: list[Summary], command: str) -> Iterator[str]:
    yield (
        '| experiment | shows | figure | published | ours | difference '
        '| status, or what to run |'
    )
    yield '|---|---|---|---|---|---|---|'
    for summary in members:
        row = summary.experiment
        sources = dict.fromkeys(each.source for each in summary.done)
        where = f'{summary.status}: {", ".join(sources)}'
        if not summary.done:
            states = {each.status for each in summary.outcomes}
            resume = ' --resume' if UNFINISHED in states else ''
            where = f'`{command} {row.id}{resume}`'
        for metric in row.metrics:
            difference = summary.difference(metric.name)
            cells = (
                row.id,
                row.shows,
                metric.name,
                published_text(row, metric.name),
                ours_text(summary, metric.name),
                '' if difference is None else f'{difference:+.1f}',
                where,
            )
            yield f'| {" | ".join(cells)} |'


def _notes(members: list[Summary]) -> Iterator[str]:
    for summary in members:
        for outcome in summary.outcomes:
            # Runs of another row are explained there.
            if outcome.notes and not summary.experiment.same_run_as:
                yield (
                    f'- {summary.experiment.id}, {outcome.folder} '
                    f'({outcome.status}): {"; ".join(outcome.notes)}.'
                )


def json_report(summaries: list[Summary], command: str) -> list[dict]:
    """The same for programs; figures that are not there are None."""
    rows = []
    for summary in summaries:
        row = summary.experiment
        figures = {
            metric.name: dict(
                published=row.published.get(metric.name),
                ours=summary.mean(metric.name),
                spread=summary.spread(metric.name),
                difference=summary.difference(metric.name),
            )
            for metric in row.metrics
        }
        runs = [
            dict(
                folder=str(each.folder),
                status=each.status,
                seed=each.seed,
                source=each.source,
                figures=each.figures,
                notes=list(each.notes),
            )
            for each in summary.outcomes
        ]
        rows.append(
            dict(
                id=row.id,
                group=row.group,
                shows=row.shows,
                config=f'configs/{row.config}',
                overrides=row.overrides,
                source=row.source,
                status=summary.status,
                command=f'{command} {row.id}',
                figures=figures,
                runs=runs,
            )
        )
    return rows
