"""What a work directory says of the run in it, from mmengine's own logs.

Every start of a command makes a folder with a timestamp. Training writes
``TIME/vis_data/TIME.json``, a line for every logged iteration and validation;
a test writes ``TIME/TIME.json``; both write ``TIME/vis_data/config.py``, the
config as it ran.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config

SESSION = re.compile(r'\d{8}_\d{6}')
#: States of a run.
NOT_RUN = 'not run'
UNFINISHED = 'unfinished'
BROKEN = 'broken'
DONE = 'done'


@dataclass(frozen=True)
class Result:
    """One evaluation of the last checkpoint.

    Attributes:
        split: ``'test'`` or ``'val'``.
        source: In words, such as ``'test of epoch_12.pth'``.
        metrics: Values by the names of the log, such as
            ``{'coco/bbox_mAP': 0.43}``.
        config: As it ran.
    """

    split: str
    source: str
    metrics: dict[str, float]
    config: Config


@dataclass(frozen=True)
class Run:
    """What :func:`read_run` found.

    Attributes:
        folder: The work directory.
        status: :data:`NOT_RUN`, :data:`UNFINISHED` (or running, which logs
            cannot tell), :data:`BROKEN` or :data:`DONE`.
        reason: Why it is not done, in words; empty for :data:`DONE`.
        config: Of the newest training session that logged something.
        start: Config of the session in which that training began: what it
            started from. Differs from ``config`` in a resumed run.
        results: Evaluations of the last checkpoint, those of tests first,
            the newest first. Only a run that is done has some.
        last_validation: In words and values, the newest validation of a run
            that is not done; None without one.
        processes: That trained, in its newest session; None where the text
            log does not say.
    """

    folder: Path
    status: str
    reason: str = ''
    config: Config | None = None
    start: Config | None = None
    results: tuple[Result, ...] = ()
    last_validation: tuple[str, dict[str, float]] | None = None
    processes: int | None = None


@dataclass
class _Training:
    """Sessions that are one training: a start and what resumed it."""

    newest: Path | None = None
    config: Config | None = None
    start: Config | None = None
    records: list[dict] = field(default_factory=list)


class _BrokenLogError(Exception):
    """A file that mmengine would not leave so."""


def read_run(folder: str | Path) -> Run:
    """Read the logs of a work directory.

    A training that was begun anew in the same folder replaces the one before;
    a resumed one replaces what came after its checkpoint. A test counts where
    it is newer than the training and of the last checkpoint (by its name).

    Args:
        folder: Work directory of ``tools/train.py`` and ``tools/test.py``;
            it may be missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return Run(folder, NOT_RUN, f'there is no folder {folder}')
    sessions = sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and SESSION.fullmatch(path.name)
    )
    if not sessions:
        return Run(folder, NOT_RUN, f'{folder} holds no log of a run')
    try:
        training = _join(sessions)
        if training.newest is None:
            return Run(
                folder,
                UNFINISHED,
                'no training iteration is logged; the newest log is '
                f'{sessions[-1].name}',
            )
        return _judge(folder, sessions, training)
    except _BrokenLogError as error:
        return Run(folder, BROKEN, str(error))


def _join(sessions: list[Path]) -> _Training:
    """The newest training, through all the sessions that resumed it."""
    training = _Training()
    for session in sessions:
        records = _read_scalars(session)
        if not records:
            continue
        config = _read_config(session)
        if config.get('resume'):
            first = records[0]['iter']
            kept = [r for r in training.records if r['iter'] < first]
            training.records = kept + records
            training.start = training.start or config
        else:
            training.records, training.start = records, config
        training.config, training.newest = config, session
    return training


def _read_scalars(session: Path) -> list[dict]:
    """Lines of the training log; a validation gets the iteration before it."""
    path = session / 'vis_data' / f'{session.name}.json'
    if not path.is_file():
        return []
    lines = path.read_text().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            # A killed process leaves half a line.
            if number == len(lines):
                break
            raise _BrokenLogError(
                f'{path}, line {number} is not JSON: {error}'
            ) from error
        record['trains'] = 'iter' in record
        if not record['trains']:
            before = records[-1] if records else dict(iter=record['step'])
            place = {k: before[k] for k in ('iter', 'epoch') if k in before}
            record.update(place)
        records.append(record)
    return records


def _read_config(session: Path) -> Config:
    path = session / 'vis_data' / 'config.py'
    if not path.is_file():
        raise _BrokenLogError(f'{path} is missing: what ran is not known')
    try:
        return Config.fromfile(path, import_custom_modules=False)
    except Exception as error:
        raise _BrokenLogError(f'{path} does not parse: {error}') from error


def _judge(folder: Path, sessions: list[Path], training: _Training) -> Run:
    """Whether a training came to its end, and with what result."""
    train_cfg = training.config.get('train_cfg') or {}
    by_epoch = 'max_epochs' in train_cfg
    unit = 'epoch' if by_epoch else 'iter'
    total = train_cfg.get(f'max_{unit}s')
    if total is None:
        raise _BrokenLogError(
            f'train_cfg of {training.newest}/vis_data/config.py has neither '
            'max_epochs nor max_iters'
        )
    trained = [r for r in training.records if r['trains']]
    validated = [r for r in training.records if not r['trains']]
    log = _read_text(training.newest)
    number = re.search(r'GPU number: (\d+)', log)
    common = dict(
        folder=folder,
        config=training.config,
        start=training.start,
        processes=int(number[1]) if number else None,
    )
    for record in (*validated[-1:], training.records[-1]):
        if unit not in record:
            raise _BrokenLogError(
                f'{training.newest}: the log has no {unit} beside its '
                f'figures: log_processor must have by_epoch={by_epoch}'
            )
    if validated:
        # Of a loop over iterations, the step is exact; of one over epochs,
        # it may be either.
        at = validated[-1]['epoch' if by_epoch else 'step']
        last = (f'validation of {unit} {at}', _metrics(validated[-1]))
    else:
        at, last = 0, None
    newest = training.records[-1]
    reached = (
        f'reached {unit} {newest[unit]} of {total}'
        + (f' (iteration {newest["iter"]})' if by_epoch else '')
        + _log_end(log)
    )
    if trouble := _not_finite(trained):
        return Run(
            **common,
            status=BROKEN,
            reason=f'{trouble}; {reached}',
            last_validation=last,
        )
    results = _tests(sessions, training.newest, f'{unit}_{total}.pth')
    if at == total:
        results.append(Result('val', last[0], last[1], training.config))
    if results:
        return Run(**common, status=DONE, results=tuple(results))
    return Run(
        **common, status=UNFINISHED, reason=reached, last_validation=last
    )


def _metrics(record: dict) -> dict[str, float]:
    aside = {'iter', 'epoch', 'step', 'trains', 'time', 'data_time'}
    return {
        name: value
        for name, value in record.items()
        if name not in aside and isinstance(value, (int, float))
    }


def _not_finite(trained: list[dict]) -> str:
    """Where the loss stopped being a number and stayed so; else nothing."""
    begin = None
    for record in reversed(trained):
        if math.isfinite(record.get('loss', 0.0)):
            break
        begin = record
    if begin is None:
        return ''
    return f'the loss is {begin["loss"]} from iteration {begin["iter"]} on'


def _read_text(session: Path) -> str:
    """The text log of a session, or nothing."""
    path = session / f'{session.name}.log'
    return path.read_text(errors='replace') if path.is_file() else ''


def _log_end(text: str) -> str:
    """When a text log was last written to, as the log itself says."""
    times = re.findall(r'^(\d{4}/\d\d/\d\d [\d:]{8}) - ', text, re.MULTILINE)
    return f', log ends {times[-1]}' if times else ''


def _tests(sessions: list[Path], after: Path, checkpoint: str) -> list[Result]:
    """Tests of a checkpoint that are newer than a session, newest first."""
    results = []
    for session in reversed(sessions):
        path = session / f'{session.name}.json'
        if session.name <= after.name or not path.is_file():
            continue
        config = _read_config(session)
        name = Path(config.get('load_from') or '').name
        if name != checkpoint:
            continue
        try:
            record = json.loads(path.read_text())
        except ValueError as error:
            raise _BrokenLogError(f'{path} is not JSON: {error}') from error
        results.append(
            Result('test', f'test of {name}', _metrics(record), config)
        )
    return results
