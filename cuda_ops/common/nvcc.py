"""Machine code of the CUDA sources: from fatbins, or from nvcc and a cache."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

#: No flag changes the arithmetic: no fast math, and contraction as by default.
FLAGS = ('-std=c++17', '-O3')
#: Include folder of the kernels.
FOLDER = Path(__file__).parent
HEADER = FOLDER / 'storage.cuh'
#: Architectures of the fatbins; newer GPUs compile the PTX of the last one.
ARCHITECTURES = ('75', '80', '86', '89', '90', '100', '120')
#: Environment variables that name the CUDA toolkit.
CUDA_FOLDERS = ('CUDA_HOME', 'CUDA_PATH')
DEFAULT_CUDA_FOLDER = '/usr/local/cuda'


class BuildError(RuntimeError):
    """There is no machine code; the message says why and what to do."""


class CudaSource(NamedTuple):
    """CUDA source of an operator.

    Attributes:
        path: File ``NAME.cu``.
        kernels: Names of its kernels, without the dtype.
    """

    path: Path
    kernels: tuple[str, ...]

    def constants(self) -> dict[str, int]:
        """Values of the lines ``constexpr int kName = 7;`` by name."""
        pattern = r'^constexpr int (k\w+) = (\d+);'
        found = re.findall(pattern, self.path.read_text(), re.MULTILINE)
        return {name: int(value) for name, value in found}

    def fatbin(self) -> Path:
        """File of ``make kernels``, whose name depends on the code."""
        return self.path.with_name(f'{self.path.stem}-{self.digest()}.fatbin')

    def digest(self, *more) -> str:
        """Hash of the source, its header, the flags and ``more``."""
        digest = hashlib.sha256(repr((FLAGS, *more)).encode())
        for path in (HEADER, self.path):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:32]


#: Sources of all operators, in the order of their import.
SOURCES: list[CudaSource] = []


def register_source(source: CudaSource) -> CudaSource:
    """Add a source to those that are built and loaded, and return it."""
    SOURCES.append(source)
    return source


def load(source: CudaSource, architecture: str) -> bytes:
    """Return machine code for pycuda's ``module_from_buffer``.

    Args:
        source: CUDA source.
        architecture: Compute capability without the dot, such as ``'90'``.

    Raises:
        BuildError: If there is neither a fatbin nor a working nvcc.
    """
    if source.fatbin().is_file():
        return source.fatbin().read_bytes()
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


def compile_source(source: CudaSource, out: Path, *flags: str) -> None:
    """Run nvcc.

    Raises:
        BuildError: If nvcc is missing or fails.
    """
    command = [
        *(nvcc(), *FLAGS, *flags, f'-I{FOLDER}'),
        *('-o', out, source.path),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(
            f'{" ".join(map(str, command))} failed:\n'
            f'{result.stderr or result.stdout}'
        )


def nvcc() -> str:
    """Return the path of nvcc, from CUDA_HOME, the PATH or /usr/local/cuda.

    Raises:
        BuildError: If it is in none of them.
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
        'nvcc is neither in $CUDA_HOME, on the PATH nor in '
        f'{DEFAULT_CUDA_FOLDER}, and there are no compiled kernels; install '
        'the CUDA toolkit, or run `make kernels` on a machine that has it'
    )


@functools.cache
def _nvcc_version(path: str) -> str:
    result = subprocess.run(
        [path, '--version'], capture_output=True, text=True
    )
    if result.returncode != 0:
        raise BuildError(f'{path} --version failed:\n{result.stderr}')
    return result.stdout


def _cached(source: CudaSource, flags: tuple[str, ...]) -> Path:
    """Path in the cache, named after everything that determines the code."""
    root = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    digest = source.digest(flags, _nvcc_version(nvcc()))
    name = f'{source.path.stem}-{flags[-1].lstrip("-")}-{digest}.cubin'
    return Path(root, 'mmlaplacian', name)


def _keep(place: Path, code: bytes) -> None:
    """Write the file in one step, since other processes may use it."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent)
    except OSError:
        # Without a writable cache each process compiles for itself.
        return
    try:
        with os.fdopen(descriptor, 'wb') as file:
            file.write(code)
        os.replace(name, place)
    except OSError:
        Path(name).unlink(missing_ok=True)


def build_fatbins() -> list[Path]:
    """Compile every source for :data:`ARCHITECTURES`, and return the files.

    Raises:
        BuildError: If nvcc is missing or fails.
    """
    codes = [f'-gencode=arch=compute_{a},code=sm_{a}' for a in ARCHITECTURES]
    last = ARCHITECTURES[-1]
    codes.append(f'-gencode=arch=compute_{last},code=compute_{last}')
    files = []
    for source in SOURCES:
        fatbin = source.fatbin()
        for old in fatbin.parent.glob(f'{source.path.stem}-*.fatbin'):
            old.unlink()
        part = fatbin.with_suffix('.part')
        compile_source(source, part, '-fatbin', '--threads=2', *codes)
        os.replace(part, fatbin)
        files.append(fatbin)
    return files
