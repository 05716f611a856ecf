"""Comparison of work directories with the table of experiments."""

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config

from .run_logs import DONE, INVALID, NOT_RUN, TRAINED, Run, read_run
from .table import Experiment

#: Settings that make a training, and a test, another experiment's.
TRAINING_KEYS = (
    'model',
    'train_cfg.type',
    'train_cfg.max_epochs',
    'train_cfg.max_iters',
    'train_dataloader.dataset',
    'randomness.seed',
)
TEST_KEYS = ('model', 'test_dataloader.dataset', 'test_evaluator')
#: Settings that may depend on the machine; the report mentions differences.
REPORTED_KEYS = (
    'optim_wrapper',
    'param_scheduler',
    'auto_scale_lr.enable',
    'train_dataloader.batch_size',
    'train_dataloader.sampler',
    'default_hooks.ema',
    'custom_hooks',
)
#: Locations of data and weights, which do not identify an experiment.
IGNORED_KEYS = {
    *('ann_file', 'backend_args', 'data_prefix', 'data_root', 'init_cfg'),
}


@dataclass(frozen=True)
class Outcome:
    """A run, compared with its experiment.

    Attributes:
        folder: Work directory.
        status: See :class:`.run_logs.Run`. A run with other settings than
            the experiment's is invalid.
        figures: In percent, by the metric's name; empty unless done.
        notes: Reasons for the status, or remarks on the figures.
    """

    folder: Path
    status: str
    figures: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def judge(
    experiment: Experiment, root: str | Path, seed: int, configs: Path
) -> Outcome:
    """Compare the run of one seed with its experiment.

    The figures are those of the newest test of the final checkpoint.

    Args:
        experiment: Row of the table.
        root: Folder of all runs.
        seed: Seed of the run.
        configs: Folder of the configs.
    """
    folder = experiment.folder(root, seed)
    run = read_run(folder)
    notes = (run.reason,) if run.reason else ()
    if run.config is None:
        return Outcome(folder, run.status, notes=notes)
    expected = experiment.load_config(configs)
    expected.merge_from_dict({'randomness.seed': seed})
    if wrong := differences(run.config, expected, TRAINING_KEYS):
        return Outcome(folder, INVALID, notes=(_listed(wrong),))
    if run.status != DONE:
        return Outcome(folder, run.status, notes=notes)
    for test in run.tests:
        wrong = differences(test.config, expected, TEST_KEYS)
        if not wrong:
            return _with_figures(experiment, folder, run, test, expected)
    note = f'the test does not count: {_listed(wrong)}'
    return Outcome(folder, TRAINED, notes=(note,))


def _with_figures(experiment, folder, run: Run, test, expected) -> Outcome:
    figures, wrong = {}, []
    for metric in experiment.metrics:
        value = test.metrics.get(metric.key)
        if value is None:
            known = ', '.join(test.metrics)
            wrong.append(f'the test has no {metric.key}, it has {known}')
        # COCO's evaluation gives -1 where there is nothing to find.
        elif not math.isfinite(value) or value < 0:
            wrong.append(f'{metric.key} of the test is {value}')
        else:
            figures[metric.name] = metric.factor * value
    if wrong:
        return Outcome(folder, INVALID, notes=tuple(wrong))
    notes = [
        f'{key} is {got}, the config has {want}'
        for key, got, want in differences(run.config, expected, REPORTED_KEYS)
    ]
    start = _start(run.start)
    if experiment.starts_from or start != _start(expected):
        notes.insert(0, f'started from {start}')
    return Outcome(folder, DONE, figures, tuple(notes))


def _start(config: Config) -> str:
    """Source of the first weights of a training."""
    if config.get('load_from'):
        return config.load_from
    init_cfg = config.model.get('backbone', {}).get('init_cfg') or {}
    return init_cfg.get('checkpoint') or 'random weights'


def differences(
    run: Config, expected: Config, keys: Iterable[str]
) -> list[tuple[str, object, object]]:
    """Settings in which a run differs from its experiment.

    Locations of data and weights do not count, and SyncBN equals BN.

    Args:
        run: Config of the run.
        expected: Config of the experiment.
        keys: Dotted keys to compare, with all below them.

    Returns:
        Key, value of the run, value of the experiment; None if not set.
    """
    ours, theirs = (
        dict(_flatten(config.to_dict())) for config in (run, expected)
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
        items = [(k, v) for k, v in node.items() if k not in IGNORED_KEYS]
    elif isinstance(node, (list, tuple)):
        items = list(enumerate(node))
    else:
        yield name, 'BN' if node == 'SyncBN' else node
        return
    for key, child in items:
        yield from _flatten(child, f'{name}.{key}' if name else str(key))


def _listed(wrong: list[tuple[str, object, object]]) -> str:
    shown = '; '.join(
        f'{key} is {got}, the experiment has {want}'
        for key, got, want in wrong[:3]
    )
    more = f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''
    return f'other settings than the experiment: {shown}{more}'


def batch_size_problem(config: Config, processes: int) -> str:
    """Warning if the learning rate does not fit the batch size, else ''.

    Args:
        config: ``auto_scale_lr`` names the total batch size that the learning
            rate is for, and says whether it is scaled.
        processes: Number of processes, each of which takes a batch.
    """
    scale = config.get('auto_scale_lr') or {}
    base = scale.get('base_batch_size')
    own = config.train_dataloader.batch_size
    own *= config.optim_wrapper.get('accumulative_counts', 1)
    if scale.get('enable') or base in (None, own * processes):
        return ''
    return (
        f'{processes} x {own} images a step, but the learning rate is for '
        f'{base}'
    )


@dataclass(frozen=True)
class Summary:
    """An experiment and all its runs."""

    experiment: Experiment
    outcomes: tuple[Outcome, ...]

    def status(self) -> str:
        """States of the runs in words, such as ``'done, 2 of 3 runs'``."""
        states = [each.status for each in self.outcomes] or [NOT_RUN]
        planned = max(len(self.experiment.seeds), len(states))
        if planned == 1 or states == [NOT_RUN]:
            return states[0]
        counts = {state: states.count(state) for state in states}
        return '; '.join(
            f'{state}, {count} of {planned} runs'
            for state, count in counts.items()
        )

    def ours_text(self) -> str:
        """Means in percent, standard deviations, and differences in brackets.

        Such as ``'box AP 43.0 ± 0.2 (-0.2), mask AP 40.4 ± 0.1 (+0.1)'``. A
        single run has no deviation, and a figure that was not published no
        difference. Without runs the text is empty.
        """
        done = [each.figures for each in self.outcomes if each.figures]
        texts = []
        for name in done[0] if done else ():
            values = [figures[name] for figures in done]
            mean = statistics.fmean(values)
            text = f'{name} {mean:.1f}'
            if len(values) > 1:
                text += f' ± {statistics.stdev(values):.1f}'
            if (published := self.experiment.published.get(name)) is not None:
                text += f' ({mean - published:+.1f})'
            texts.append(text)
        return ', '.join(texts)


def summarize(
    table: dict[str, Experiment], configs: Path, root: str | Path
) -> dict[str, Summary]:
    """Compare all work directories with the table.

    Args:
        table: Experiments by id.
        configs: Folder of the configs.
        root: Folder of all runs, ``root/ID/seedN``; it may be missing.
    """
    summaries = {}
    for name, row in table.items():
        seeds = sorted(
            int(path.name[4:])
            for path in Path(root, name).glob('seed*')
            if path.name[4:].isdigit()
        )
        outcomes = (judge(row, root, seed, configs) for seed in seeds)
        summaries[name] = Summary(row, tuple(outcomes))
    return summaries


def markdown_report(summaries: dict[str, Summary]) -> str:
    """Table of published figures and ours for each group.

    Args:
        summaries: By id, as :func:`summarize` returns them.
    """
    lines = [
        '# Published figures and ours',
        '',
        'All figures are in percent. Ours come from the test of the final',
        'checkpoint: the mean over runs, ± their standard deviation, and in',
        'brackets the difference from the published figure.',
        '`python tools/reproduce.py run EXPERIMENT` trains and tests one.',
    ]
    groups: dict[str, list[Summary]] = {}
    for summary in summaries.values():
        row = summary.experiment
        if row.group not in groups:
            groups[row.group] = [summaries[name] for name in row.baselines]
        groups[row.group].append(summary)
    for title, members in groups.items():
        lines += [
            *('', f'## {title}', ''),
            '| experiment | shows | published | ours | status |',
            '|---|---|---|---|---|',
        ]
        for summary in members:
            row = summary.experiment
            cells = row.id, row.shows, row.published_text() or '-'
            cells += summary.ours_text() or '-', summary.status()
            lines.append(f'| {" | ".join(cells)} |')
        notes = [
            f'- {outcome.folder} ({outcome.status}): '
            f'{"; ".join(outcome.notes)}.'
            for summary in members
            for outcome in summary.outcomes
            if outcome.notes
        ]
        lines += ['', *notes] if notes else []
    return '\n'.join(lines) + '\n'
