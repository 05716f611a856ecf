"""The compiled CPU kernels: found, checked and loaded once, or not.

Loading them adds CPU kernels to the operators' names; PyTorch's dispatcher
then prefers those to the reference. Without them the reference runs.
"""

import ctypes
import platform
import time
import warnings
from pathlib import Path

import torch

from ._sources import MARK, sources_hash

#: Instruction sets that the library chooses from, best first.
VARIANTS = ('AVX-512', 'AVX2', 'plain')

OLDEST_TORCH = (2, 10)
HOW_TO_BUILD = (
    'build them, in a clone and with a C++ compiler, by '
    'pip install --no-build-isolation --no-deps -e .'
)


def find_trouble(path: Path | None) -> str | None:
    """Why a library cannot be used, found without loading it; None if it can.

    Args:
        path: The library, or None where there is none.
    """
    if path is None:
        return (
            'they were not built (an isolated build sees no PyTorch, and '
            'they need GCC 12 or Clang)'
        )
    found = torch.__version__.split('.')
    if (int(found[0]), int(found[1])) < OLDEST_TORCH:
        return f'they need PyTorch 2.10 or newer, this is {torch.__version__}'
    try:
        _, mark, after = path.read_bytes().partition(MARK)
    except OSError as error:
        return f'{path} cannot be read: {error}'
    if not mark:
        return f'{path} is not our library'
    if after[:16].decode(errors='replace') != sources_hash():
        return f'{path} was built from other sources than those beside it'
    return None


class CompiledKernels:
    """The library of one process.

    Attributes:
        trouble: Why it is not in use; None where it is.
    """

    def __init__(self, folder: Path):
        found = sorted(folder.glob('_C.*so'))
        self._library = None
        self.trouble = find_trouble(found[0] if found else None)
        if self.trouble:
            return
        try:
            torch.ops.load_library(str(found[0]))
            self._library = ctypes.CDLL(str(found[0]))
        except OSError as error:
            reason = error.__cause__ or error
            self.trouble = f'{found[0]} does not load: {reason}'
            return
        self._library.mmlaplacian_variant.restype = ctypes.c_char_p
        self._library.mmlaplacian_additions.argtypes = [ctypes.c_int64]
        self._library.mmlaplacian_additions.restype = ctypes.c_double

    @property
    def variant(self) -> str | None:
        """Instruction set in use, of :data:`VARIANTS`; None for none."""
        if self._library is None:
            return None
        return self._library.mmlaplacian_variant().decode()

    def additions_per_second(self, count: int = 10**9) -> float:
        """How fast one thread adds floats in registers, for benchmarks.

        Args:
            count: About how many are added.
        """
        start = time.perf_counter()
        done = self._library.mmlaplacian_additions(count)
        return done / (time.perf_counter() - start)

    def use_variant(self, name: str | None = None) -> None:
        """Choose the instruction set, for tests and comparisons.

        Args:
            name: Of :data:`VARIANTS`; None for the best that runs here.

        Raises:
            ValueError: The name is unknown, or this processor lacks it.
        """
        done = self._library is not None and self._library.mmlaplacian_choose(
            (name or '').encode()
        )
        if not done:
            raise ValueError(
                f'use_variant: expected one of {VARIANTS} that this '
                f'{platform.machine()} processor has, got {name!r}'
            )


COMPILED = CompiledKernels(Path(__file__).resolve().parent)
if COMPILED.trouble:
    warnings.warn(
        f'cuda_ops: the compiled CPU kernels are not in use: '
        f'{COMPILED.trouble}. The plain PyTorch form runs, slower on CPUs; '
        f'{HOW_TO_BUILD}',
        stacklevel=2,
    )
