"""Reader of mmengine's logs: whether a training finished, and its tests.

Every start of a command creates a folder named after the time. Training
writes ``TIME/vis_data/TIME.json``, one line per logged iteration or
validation; a test writes ``TIME/TIME.json``; both write
``TIME/vis_data/config.py``, the config of that session.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config

SESSION = re.compile(r'\d{8}_\d{6}')
#: States of a run. Logs cannot tell an unfinished run from a running one.
NOT_RUN = 'not run'
UNFINISHED = 'unfinished'
INVALID = 'invalid'
TRAINED = 'trained, not tested'
DONE = 'done'


@dataclass(frozen=True)
class Test:
    """Test of the final checkpoint.

    Attributes:
        metrics: Values by the names of the log, such as
            ``{'coco/bbox_mAP': 0.43}``.
        config: Config of the test.
    """

    metrics: dict[str, float]
    config: Config


@dataclass(frozen=True)
class Run:
    """State of a work directory, as :func:`read_run` finds it.

    Attributes:
        status: :data:`NOT_RUN`, :data:`UNFINISHED`, :data:`INVALID`,
            :data:`TRAINED` or :data:`DONE`.
        reason: Explanation of the status in words; empty when done.
        config: Config of the newest training session; None without one.
        start: Config of the session that began this training. It differs from
            ``config`` when the training was resumed.
        tests: Tests of the final checkpoint, newest first.
    """

    status: str
    reason: str = ''
    config: Config | None = None
    start: Config | None = None
    tests: tuple[Test, ...] = ()


class _LogError(Exception):
    """Malformed log file."""


def final_checkpoint(config: Config) -> str:
    """Name of the checkpoint at the end of training, such as ``epoch_12.pth``.

    Args:
        config: ``train_cfg`` has ``max_epochs`` or ``max_iters``.
    """
    train_cfg = config.train_cfg
    if 'max_epochs' in train_cfg:
        return f'epoch_{train_cfg.max_epochs}.pth'
    return f'iter_{train_cfg.max_iters}.pth'


def read_run(folder: str | Path) -> Run:
    """Read the logs of a work directory.

    A training that starts anew in the same folder replaces the one before. A
    test counts if it is newer than the training and loaded the final
    checkpoint, which is recognised by its name.

    Args:
        folder: Work directory of ``tools/train.py`` and ``tools/test.py``; it
            may be missing.
    """
    folder = Path(folder)
    sessions = sorted(
        path
        for path in folder.glob('*')
        if path.is_dir() and SESSION.fullmatch(path.name)
    )
    try:
        return _read_sessions(folder, sessions)
    except _LogError as error:
        return Run(INVALID, str(error))


def _read_sessions(folder: Path, sessions: list[Path]) -> Run:
    newest = config = start = last = None
    for session in sessions:
        records = _read_training(session)
        if records:
            newest, config, last = session, _read_config(session), records[-1]
            start = start if start and config.get('resume') else config
    if newest is None and sessions:
        return Run(UNFINISHED, 'no training iteration is logged')
    if newest is None:
        return Run(NOT_RUN, f'{folder} holds no log of a run')
    try:
        checkpoint = final_checkpoint(config)
    except AttributeError as error:
        raise _LogError(
            f'{newest}/vis_data/config.py: expected max_epochs or max_iters '
            f'in train_cfg: {error}'
        ) from error
    if not math.isfinite(last.get('loss', 0.0)):
        reason = f'the loss is {last["loss"]} in iteration {last["iter"]}'
        return Run(INVALID, reason, config, start)
    tests = tuple(
        test
        for session in reversed(sessions)
        if session.name > newest.name
        and (test := _read_test(session, checkpoint))
    )
    if tests:
        return Run(DONE, '', config, start, tests)
    unit, total = Path(checkpoint).stem.split('_')
    if last.get(unit) == int(total) and (folder / checkpoint).is_file():
        return Run(TRAINED, f'{checkpoint} is not tested', config, start)
    reached = f'reached {unit} {last.get(unit)} of {total}'
    return Run(UNFINISHED, reached, config, start)


def _read_training(session: Path) -> list[dict]:
    """Logged training iterations of a session; none if it did not train."""
    path = session / 'vis_data' / f'{session.name}.json'
    if not path.is_file():
        return []
    lines = path.read_text().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            # A killed process leaves half a line.
            if number < len(lines):
                raise _LogError(
                    f'{path}, line {number} is not JSON: {error}'
                ) from error
    return [record for record in records if 'iter' in record]


def _read_config(session: Path) -> Config:
    path = session / 'vis_data' / 'config.py'
    try:
        return Config.fromfile(path, import_custom_modules=False)
    except Exception as error:
        raise _LogError(f'{path} cannot be read: {error}') from error


def _read_test(session: Path, checkpoint: str) -> Test | None:
    path = session / f'{session.name}.json'
    if not path.is_file():
        return None
    config = _read_config(session)
    if Path(config.get('load_from') or '').name != checkpoint:
        return None
    try:
        return Test(json.loads(path.read_text()), config)
    except ValueError as error:
        raise _LogError(f'{path} is not JSON: {error}') from error
