"""CUDA sources to machine code: shipped fatbins, else nvcc and a cache."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .cuda_launch import SOURCES

FOLDER = Path(__file__).parent / 'csrc' / 'cuda'
#: No flag changes the arithmetic: no fast math, contraction as nvcc's default.
FLAGS = ('-std=c++17', '-O3')
#: Architectures of the fatbins; newer GPUs compile the PTX of the last.
ARCHITECTURES = ('75', '80', '86', '89', '90', '100', '120')
#: Where CUDA is commonly installed without being on the PATH.
CUDA_FOLDERS = ('CUDA_HOME', 'CUDA_PATH')
DEFAULT_CUDA_FOLDER = '/usr/local/cuda'


class BuildError(RuntimeError):
    """No machine code: the message says why and what to do."""


def fatbin(source: str) -> Path:
    """Where ``make kernels`` puts the code; another name for other sources."""
    return FOLDER / f'{source}-{_digest(source)}.fatbin'


def _digest(source: str, *more) -> str:
    digest = hashlib.sha256(repr((FLAGS, *more)).encode())
    for path in (FOLDER / 'storage.cuh', FOLDER / f'{source}.cu'):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def load(source: str, architecture: str) -> bytes:
    """Machine code of a source file, for pycuda's ``module_from_buffer``.

    Args:
        source: Name in :data:`cuda_launch.SOURCES`.
        architecture: Compute capability without the dot, such as ``'90'``.

    Raises:
        BuildError: There is neither a fatbin nor a working nvcc.
    """
    if fatbin(source).is_file():
        return fatbin(source).read_bytes()
    flags = ('-cubin', f'-arch=sm_{architecture}')
    place = _cached(source, flags)
    try:
        return place.read_bytes()
    except OSError:
        pass
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, 'cubin')
        compile_source(source, cubin, *flags)
        code = cubin.read_bytes()
    _keep(place, code)
    return code


def compile_source(source: str, out: Path, *flags: str) -> None:
    """Run nvcc.

    Raises:
        BuildError: nvcc is missing or fails.
    """
    command = [nvcc(), *FLAGS, *flags, '-o', out, FOLDER / f'{source}.cu']
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(
            f'{" ".join(map(str, command))} failed:\n'
            f'{result.stderr or result.stdout}'
        )


def nvcc() -> str:
    """Path of nvcc, from CUDA_HOME, the PATH or /usr/local/cuda.

    Raises:
        BuildError: It is in none of them.
    """
    folders = [os.environ.get(name) for name in CUDA_FOLDERS]
    found = [
        *(shutil.which('nvcc', path=f'{f}/bin') for f in folders if f),
        shutil.which('nvcc'),
        shutil.which('nvcc', path=f'{DEFAULT_CUDA_FOLDER}/bin'),
    ]
    for path in filter(None, found):
        return path
    raise BuildError(
        'no kernels: nvcc is neither in $CUDA_HOME, on the PATH nor in '
        f'{DEFAULT_CUDA_FOLDER}, and {FOLDER} has no fatbin; install the CUDA '
        'toolkit, or run `make kernels` where one is'
    )


@functools.cache
def _nvcc_version(path: str) -> str:
    result = subprocess.run(
        [path, '--version'], capture_output=True, text=True
    )
    if result.returncode != 0:
        raise BuildError(f'{path} --version failed:\n{result.stderr}')
    return result.stdout


def _cached(source: str, flags: tuple[str, ...]) -> Path:
    """Place in the cache: everything that decides the code is in its name."""
    root = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    digest = _digest(source, flags, _nvcc_version(nvcc()))
    name = f'{source}-{flags[-1].lstrip("-")}-{digest}.cubin'
    return Path(root, 'mmlaplacian', name)


def _keep(place: Path, code: bytes) -> None:
    """Write whole files only: other processes may read and write the same."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent)
    except OSError:
        # A home that cannot be written costs a compilation for each process.
        return
    try:
        with os.fdopen(descriptor, 'wb') as file:
            file.write(code)
        os.replace(name, place)
    except OSError:
        Path(name).unlink(missing_ok=True)


def build_fatbins() -> list[Path]:
    """Compile every source for :data:`ARCHITECTURES`; returns the files.

    Raises:
        BuildError: nvcc is missing or fails.
    """
    codes = [f'-gencode=arch=compute_{a},code=sm_{a}' for a in ARCHITECTURES]
    last = ARCHITECTURES[-1]
    codes.append(f'-gencode=arch=compute_{last},code=compute_{last}')
    for source in SOURCES:
        for old in FOLDER.glob(f'{source}-*.fatbin'):
            old.unlink()
        part = fatbin(source).with_suffix('.part')
        compile_source(source, part, '-fatbin', '--threads=2', *codes)
        os.replace(part, fatbin(source))
    return [fatbin(source) for source in SOURCES]
