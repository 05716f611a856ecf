"""Run the experiments of configs/experiments.yml and compare the results.

python tools/reproduce.py report --out report.md
python tools/reproduce.py run ID --seed 0 1 2
python tools/reproduce.py zoo --out docs/model_zoo.md
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from mmlaplacian.check_env import check_or_exit

check_or_exit('reproduce.py')

from mmengine.config import DictAction

from mmlaplacian.errors import InputError
from mmlaplacian.experiments.model_zoo import model_zoo
from mmlaplacian.experiments.results import (
    TRAINING_KEYS,
    batch_size_problem,
    differences,
    judge,
    markdown_report,
    summarize,
)
from mmlaplacian.experiments.run_logs import (
    DONE,
    INVALID,
    TRAINED,
    UNFINISHED,
    final_checkpoint,
)
from mmlaplacian.experiments.table import find_experiment, load_experiments

TOOLS = Path(__file__).resolve().parent
CONFIGS = TOOLS.parent / 'configs'
COMMAND = 'python tools/reproduce.py run'
ZOO = 'python tools/reproduce.py zoo --out docs/model_zoo.md'


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parsers = parser.add_subparsers(dest='command', required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        '--table',
        type=Path,
        default=CONFIGS / 'experiments.yml',
        help='table of experiments (default: the table of this project)',
    )
    common.add_argument(
        '--work-dirs',
        type=Path,
        default=Path('work_dirs'),
        help='folder of all runs, WORK_DIRS/ID/seedN (default: work_dirs)',
    )
    for name, text in (
        (
            'report',
            'print all experiments, their state, published figures and ours',
        ),
        ('zoo', 'print the model zoo page'),
    ):
        page = parsers.add_parser(name, parents=[common], help=text)
        page.add_argument(
            '--out', type=Path, help='write to this file instead'
        )
    run = parsers.add_parser(
        'run', parents=[common], help='train and test an experiment'
    )
    run.add_argument('id', help='id of the experiment')
    run.add_argument(
        '--seed',
        type=int,
        nargs='+',
        help='train once with each seed (default: the seeds of the table)',
    )
    run.add_argument(
        '--dry-run', action='store_true', help='only print the commands'
    )
    run.add_argument(
        '--processes',
        type=int,
        help='number of processes on this machine, one for each GPU; '
        'tools/dist_train.sh starts them',
    )
    for name in ('amp', 'auto-scale-lr', 'resume', 'from-scratch'):
        run.add_argument(
            f'--{name}', action='store_true', help='passed to tools/train.py'
        )
    run.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='more settings, passed to tools/train.py and tools/test.py',
    )
    return parser.parse_args()


def check_settings(experiment, args) -> None:
    """Refuse settings of another experiment, or a wrong learning rate.

    Raises:
        InputError: See above.
    """
    options = argparse.Namespace()
    expected = experiment.load_config(CONFIGS)
    config = experiment.load_config(CONFIGS)
    try:
        DictAction([], 'given')(None, options, args.cfg_options)
        config.merge_from_dict(options.given)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(
            f'--cfg-options: expected KEY=VALUE of {experiment.config}, got '
            f'{" ".join(args.cfg_options)}: {error}'
        ) from error
    for key, got, wanted in differences(config, expected, TRAINING_KEYS):
        raise InputError(
            f'--cfg-options: {key}={got} would be another experiment than '
            f'{experiment.id}, which has {wanted}; train it with '
            'tools/train.py'
        )
    # dist_train.sh takes the number of machines from NNODES.
    machines = os.environ.get('NNODES', '1') if args.processes else '1'
    if not machines.isdigit():
        raise InputError(f'NNODES: expected a number, got {machines!r}')
    problem = batch_size_problem(config, int(machines) * (args.processes or 1))
    chosen = 'optim_wrapper.optimizer.lr' in options.given
    if problem and not (args.auto_scale_lr or chosen):
        text = (
            f'{experiment.id}: {problem}. Add --processes N for N GPUs, or '
            '--auto-scale-lr, or choose a learning rate with --cfg-options '
            'optim_wrapper.optimizer.lr=LR'
        )
        if not args.dry_run:
            raise InputError(text)
        print(text)


def starting_point(experiment, seed: int, args, table) -> list[str]:
    """``load_from`` option of an experiment that starts from another's run.

    Raises:
        InputError: That run has no final checkpoint.
    """
    given = any(text.startswith('load_from=') for text in args.cfg_options)
    if not experiment.starts_from or given:
        return []
    origin = table[experiment.starts_from]
    path = origin.folder(args.work_dirs, seed)
    path /= final_checkpoint(origin.load_config(CONFIGS))
    if not (path.is_file() or args.dry_run):
        raise InputError(
            f'{experiment.id} starts from {origin.id}, but {path} does not '
            f'exist. Run it first with {COMMAND} {origin.id} --seed {seed}, '
            'or name a checkpoint with --cfg-options load_from=FILE'
        )
    return [f'load_from={path}']


def execute(words: list[str], dry_run: bool) -> None:
    """Print a command and, unless ``dry_run``, run it.

    Raises:
        InputError: The command failed.
    """
    print(shlex.join(words), flush=True)
    if dry_run:
        return
    environment = {'PYTHON': sys.executable, **os.environ}
    status = subprocess.run(words, env=environment).returncode
    if status:
        raise InputError(
            f'{Path(words[1]).name} failed with exit status {status}; see '
            'its messages above'
        )


def run_seed(experiment, seed: int, args, table) -> None:
    """Train and test one seed, skipping what is already done."""
    outcome = judge(experiment, args.work_dirs, seed, CONFIGS)
    folder, notes = outcome.folder, '; '.join(outcome.notes)
    if outcome.status == DONE:
        print(f'{experiment.id}, seed {seed}: done, in {folder}')
        return
    if outcome.status == UNFINISHED and not args.resume:
        raise InputError(
            f'{folder} holds an unfinished run ({notes}): continue it with '
            '--resume, or move it away'
        )
    if outcome.status == INVALID:
        raise InputError(f'{folder} is invalid ({notes}): move it away')
    common = ['--work-dir', str(folder), '--cfg-options']
    common += [f'{k}={v}' for k, v in experiment.overrides.items()]
    common += [f'randomness.seed={seed}', *args.cfg_options]
    starter = [sys.executable, str(TOOLS / '{}.py')]
    processes = []
    if args.processes:
        starter = ['bash', str(TOOLS / 'dist_{}.sh')]
        processes = [str(args.processes)]
    config = str(CONFIGS / experiment.config)
    train, test = (
        [starter[0], starter[1].format(name), config]
        for name in ('train', 'test')
    )
    if outcome.status != TRAINED:
        check_settings(experiment, args)
        # With both, mmengine would resume from load_from.
        resumes = args.resume and (folder / 'last_checkpoint').is_file()
        start = []
        if not resumes:
            start = starting_point(experiment, seed, args, table)
        flags = [
            f'--{name.replace("_", "-")}'
            for name in ('amp', 'auto_scale_lr', 'from_scratch')
            if getattr(args, name)
        ]
        flags += ['--resume'] if resumes else []
        execute([*train, *processes, *flags, *common, *start], args.dry_run)
    checkpoint = folder / final_checkpoint(experiment.load_config(CONFIGS))
    if not (checkpoint.is_file() or args.dry_run):
        raise InputError(
            f'{checkpoint} does not exist after the training: the config must '
            'save the last epoch or iteration (default_hooks.checkpoint)'
        )
    execute([*test, str(checkpoint), *processes, *common], args.dry_run)


def write(text: str, path: Path | None) -> None:
    """Write a page to a file, or print it.

    Raises:
        InputError: The file cannot be written.
    """
    if path is None:
        print(text, end='')
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f'{path} cannot be written: {error}') from error


def main():
    args = parse_args()
    try:
        table = load_experiments(args.table)
        if args.command == 'zoo':
            index = TOOLS.parent / 'model-index.yml'
            write(model_zoo(table, index, ZOO), args.out)
        elif args.command == 'run':
            experiment = find_experiment(table, args.id)
            print(
                f'{experiment.id}: {experiment.hardware}; time of a seed: '
                f'{experiment.time}'
            )
            for seed in args.seed or experiment.seeds:
                run_seed(experiment, seed, args, table)
        else:
            summaries = summarize(table, CONFIGS, args.work_dirs)
            write(markdown_report(summaries), args.out)
    except InputError as error:
        sys.exit(f'reproduce.py: {error}')


if __name__ == '__main__':
    main()
