"""Run the experiments of configs/experiments.yml, and compare.

python tools/reproduce.py list
python tools/reproduce.py run ID --seed 0 1 2
python tools/reproduce.py report --markdown report.md --json report.json
python tools/reproduce.py zoo --out docs/model_zoo.md
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from mmlaplacian.check_env import check_or_exit

check_or_exit('reproduce.py')

from mmengine.config import DictAction

from mmlaplacian.errors import InputError
from mmlaplacian.experiments import table as experiments
from mmlaplacian.experiments.model_zoo import model_zoo
from mmlaplacian.experiments.run_logs import DONE, NOT_RUN, UNFINISHED

TOOLS = Path(__file__).resolve().parent
CONFIGS = TOOLS.parent / 'configs'
COMMAND = 'python tools/reproduce.py run'
ZOO = 'python tools/reproduce.py zoo --out docs/model_zoo.md'


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parsers = parser.add_subparsers(dest='what', required=True)
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument(
        '--table',
        type=Path,
        default=CONFIGS / 'experiments.yml',
        help='table of experiments; default: that of this project',
    )
    places.add_argument(
        '--work-dirs',
        type=Path,
        default=Path('work_dirs'),
        help='runs are in WORK_DIRS/ID/seedN; default: work_dirs',
    )
    places.add_argument(
        '--run',
        action='append',
        default=[],
        metavar='ID=DIR',
        help='take DIR as a work directory of ID; may be repeated. The '
        'config in it is run: give none that you do not trust',
    )
    parsers.add_parser(
        'list', parents=[places], help='every experiment and its state'
    )
    add_run(parsers, places)
    report = parsers.add_parser(
        'report', parents=[places], help='published figures beside ours'
    )
    report.add_argument('--markdown', type=Path, metavar='FILE')
    report.add_argument('--json', type=Path, metavar='FILE')
    zoo = parsers.add_parser(
        'zoo', parents=[places], help='the model zoo page'
    )
    zoo.add_argument('--out', type=Path, help='file; default: print it')
    return parser.parse_args()


def add_run(parsers, places):
    parser = parsers.add_parser(
        'run', parents=[places], help='train and test an experiment'
    )
    parser.add_argument('id', help='experiment')
    parser.add_argument(
        '--seed',
        type=int,
        nargs='+',
        help='one run each, one after another; default: those of the table',
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='print the commands only'
    )
    starts = parser.add_mutually_exclusive_group()
    starts.add_argument(
        '--processes',
        type=int,
        help='GPUs, or gloo on CPUs: through tools/dist_train.sh',
    )
    starts.add_argument(
        '--launcher',
        choices=('slurm', 'mpi'),
        help='of train.py and test.py, where srun or mpirun starts this',
    )
    for name in ('amp', 'auto-scale-lr', 'resume', 'from-scratch'):
        parser.add_argument(
            f'--{name}', action='store_true', help='of train.py'
        )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='of train.py and test.py, beside those of the experiment',
    )


def given_folders(runs: list[str], table: dict) -> dict[str, list[Path]]:
    """Work directories of ``--run``, by the experiment's id."""
    folders: dict[str, list[Path]] = {}
    for text in runs:
        name, _, path = text.partition('=')
        experiment = experiments.find_experiment(table, name)
        folder = Path(path)
        if not path or not folder.is_dir():
            raise InputError(
                f'--run: expected ID=DIR with a work directory, got {text!r}'
                ' and no such folder'
            )
        inside = experiments.seed_folders(folder) or [folder]
        folders.setdefault(experiment.run_id, []).extend(inside)
    return folders


def last_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that a training saved last, also in a moved folder."""
    note = folder / 'last_checkpoint'
    if not note.is_file():
        return None
    saved = Path(note.read_text().strip())
    for path in (saved, folder / saved.name):
        if path.is_file():
            return path
    return None


def read_later(folder: Path) -> str:
    """For a shell: the checkpoint that a training will have saved last."""
    return f'"$(cat {shlex.quote(str(folder / "last_checkpoint"))})"'


def find_start(experiment, seed: int, args, given: dict, table: dict) -> str:
    """``load_from`` of an experiment that starts from another's run."""
    origin = table[experiment.starts_from]
    folder = origin.folder(args.work_dirs, seed)
    if folders := given.get(origin.run_id):
        same = [path for path in folders if path.name == folder.name]
        folder = (same or folders)[0]
    found = last_checkpoint(folder)
    if found:
        return str(found)
    if args.dry_run:
        return read_later(folder)
    raise InputError(
        f'{experiment.id} starts from {origin.id}, whose last checkpoint is '
        f'not in {folder.absolute()}: run it first, with {COMMAND} '
        f'{origin.id} --seed {seed}, or give a work directory of it, with '
        f'--run {origin.id}=DIR'
    )


def build_commands(experiment, seed: int, folder: Path, start, args) -> tuple:
    """Words of the training and of the test, without the checkpoint."""
    config = str(CONFIGS / experiment.config)
    options = [f'{k}={v}' for k, v in experiment.overrides.items()]
    options += [f'randomness.seed={seed}', *args.cfg_options]
    if args.processes:
        train = ['bash', str(TOOLS / 'dist_train.sh'), config]
        train.append(str(args.processes))
        test = ['bash', str(TOOLS / 'dist_test.sh'), config]
    else:
        train = [sys.executable, str(TOOLS / 'train.py'), config]
        test = [sys.executable, str(TOOLS / 'test.py'), config]
    common = ['--work-dir', str(folder)]
    if args.launcher:
        common += ['--launcher', args.launcher]
    train += common
    for name in ('amp', 'auto_scale_lr', 'resume', 'from_scratch'):
        if getattr(args, name):
            train.append(f'--{name.replace("_", "-")}')
    load_from = [f'load_from={start}'] if start else []
    train += ['--cfg-options', *options, *load_from]
    return train, test, [*common, '--cfg-options', *options]


def count_processes(args) -> int:
    """How many will train, of all machines."""
    if not (args.launcher or args.processes):
        return 1
    names = dict(slurm='SLURM_NTASKS', mpi='OMPI_COMM_WORLD_SIZE')
    # dist_train.sh takes the number of machines from NNODES.
    name = names.get(args.launcher, 'NNODES')
    text = os.environ.get(name, '1')
    if not text.isdigit():
        raise InputError(f'{name}: expected a number, got {text!r}')
    return int(text) * (args.processes or 1)


def check_settings(experiment, args) -> None:
    """Refuse what would train in vain, or with the wrong learning rate."""
    options = argparse.Namespace()
    config = experiment.load_config(CONFIGS)
    try:
        DictAction([], 'given')(None, options, args.cfg_options)
        config.merge_from_dict(options.given)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(
            f'--cfg-options: expected KEY=VALUE of {experiment.config}, got '
            f'{" ".join(args.cfg_options)}: {error}'
        ) from error
    expected = experiment.load_config(CONFIGS)
    for key, got, wanted in experiments.differences(config, expected):
        raise InputError(
            f'--cfg-options: {key}={got} would be another experiment than '
            f'{experiment.id}, which has {wanted}; train it with '
            'tools/train.py'
        )
    asked = args.auto_scale_lr or 'optim_wrapper.optimizer.lr' in options.given
    troubles = experiments.batch_troubles(config, count_processes(args))
    if troubles and not asked:
        text = (
            f'{experiment.id}: {troubles[0]}: add --processes N for N GPUs, '
            'or --auto-scale-lr, or give a learning rate of your own, with '
            '--cfg-options optim_wrapper.optimizer.lr=LR'
        )
        if not args.dry_run:
            raise InputError(text)
        print(text)


def execute(words: list[str], dry: bool) -> None:
    """Print a command and, unless ``dry``, run it."""
    shown = (w if '"$(cat ' in w else shlex.quote(w) for w in words)
    print(' '.join(shown), flush=True)
    if dry:
        return
    environment = {'PYTHON': sys.executable, **os.environ}
    status = subprocess.run(words, env=environment).returncode
    if status:
        raise InputError(
            f'{Path(words[1]).name} ended with exit status {status}; what it '
            'printed says why'
        )


def check_state(outcome, args) -> None:
    """Refuse a folder that a training would spoil."""
    notes = '; '.join(outcome.notes)
    if outcome.status == UNFINISHED and not args.resume:
        raise InputError(
            f'{outcome.folder} holds a run that is not finished ({notes}): '
            'go on with it by --resume, or move it away'
        )
    if outcome.status not in (NOT_RUN, UNFINISHED, DONE):
        raise InputError(
            f'{outcome.folder}: {outcome.status} ({notes}): move it away'
        )


def run_seed(experiment, seed: int, folder: Path, args, given, table) -> None:
    """Train and test what of a run is not there yet."""
    outcome = experiments.judge(experiment, folder, CONFIGS)
    if not args.dry_run:
        check_state(outcome, args)
    if outcome.status == DONE and outcome.tested:
        print(f'{experiment.id}, seed {seed}: done, in {folder}')
        return
    start = None
    trains = outcome.status != DONE
    # Resuming puts the newest checkpoint in the place of the start.
    resumes = args.resume and last_checkpoint(folder)
    if trains and experiment.starts_from and not resumes:
        start = find_start(experiment, seed, args, given, table)
    train, test, rest = build_commands(experiment, seed, folder, start, args)
    if trains:
        check_settings(experiment, args)
        execute(train, args.dry_run)
    found = None if trains and args.dry_run else last_checkpoint(folder)
    if not found and not args.dry_run:
        raise InputError(
            f'{folder} holds no last_checkpoint after the training: the '
            'config must save one (default_hooks.checkpoint)'
        )
    checkpoint = str(found or read_later(folder))
    processes = [str(args.processes)] if args.processes else []
    execute([*test, checkpoint, *processes, *rest], args.dry_run)


def run(args, table: dict, given: dict) -> None:
    experiment = experiments.find_experiment(table, args.id)
    if not (CONFIGS / experiment.config).is_file():
        raise InputError(
            f'{experiment.id}: expected the config '
            f'{CONFIGS / experiment.config}, found none'
        )
    seeds = args.seed or experiment.seeds
    folders = given.get(experiment.run_id)
    if folders and len(folders) != len(seeds):
        raise InputError(
            f'--run {experiment.run_id}=DIR: expected a folder for each of '
            f'the {len(seeds)} seeds ({", ".join(map(str, seeds))}), got '
            f'{len(folders)}; choose the seeds with --seed'
        )
    if experiment.run_id != experiment.id:
        print(f'{experiment.id} is the run of {experiment.run_id}')
    print(
        f'{experiment.id}: {experiment.hardware}, time of a seed '
        f'{experiment.time}; results: {args.work_dirs}/{experiment.run_id}'
    )
    for i, seed in enumerate(seeds):
        own = experiment.folder(args.work_dirs, seed)
        folder = folders[i] if folders else own
        run_seed(experiment, seed, folder, args, given, table)


def list_experiments(summaries: list) -> None:
    """A line for each experiment."""
    rows = [('experiment', 'published', 'ours', 'status', 'config')]
    for summary in summaries:
        row = summary.experiment
        names = [metric.name for metric in row.metrics]
        figures = [experiments.published_text(row, name) for name in names]
        ours = [experiments.ours_text(summary, name) for name in names]
        config = f'configs/{row.config}'
        overrides = [f'{key}={value}' for key, value in row.overrides.items()]
        rows.append(
            (
                row.id,
                ' / '.join(dict.fromkeys(figures)),
                ' / '.join(ours) if summary.done else '-',
                summary.status,
                ' '.join([config, *overrides]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = map(str.ljust, cells, widths)
        print('  '.join(padded).rstrip())


def write(path: Path | None, text: str) -> None:
    """Write a file where one is asked for."""
    if path is None:
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f'{path} cannot be written: {error}') from error


def report(args, summaries: list) -> None:
    text = experiments.markdown_report(summaries, COMMAND)
    content = experiments.json_report(summaries, COMMAND)
    write(args.markdown, text)
    write(args.json, json.dumps(content, indent=2) + '\n')
    print(text, end='')


def main():
    args = parse_args()
    try:
        table = experiments.load_experiments(args.table)
        if args.what == 'zoo':
            page = model_zoo(table, TOOLS.parent / 'model-index.yml', ZOO)
            write(args.out, page)
            if not args.out:
                print(page, end='')
            return
        given = given_folders(args.run, table)
        if args.what == 'run':
            run(args, table, given)
            return
        summaries = experiments.summarize(
            table, CONFIGS, args.work_dirs, given
        )
        if args.what == 'list':
            list_experiments(summaries)
        else:
            report(args, summaries)
    except InputError as error:
        sys.exit(f'reproduce.py: {error}')


if __name__ == '__main__':
    main()
