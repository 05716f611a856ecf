"""Loading of the compiled CPU library, and the choice of its variant.

Loading the library adds CPU kernels to the operators, which PyTorch's
dispatcher then prefers to the reference. Without it the reference runs.
"""

import ctypes
import platform
import warnings
from pathlib import Path

import torch

from .sources import MARK, PACKAGE, changed_files, code_hashes

#: Instruction sets that the library has kernels for, fastest first.
VARIANTS = ('AVX-512', 'AVX2', 'plain')

OLDEST_TORCH = (2, 10)
HOW_TO_BUILD = (
    'build the library in a clone, with a C++ compiler: '
    'pip install --no-build-isolation --no-deps -e .'
)


def reason_not_to_load(path: Path | None) -> str | None:
    """Check a library without loading it.

    Args:
        path: The library, or None if there is none.

    Returns:
        Why it cannot be used, or None if it can.
    """
    if path is None:
        return (
            'the library was not built (it needs GCC 12 or Clang, and a build '
            'that sees PyTorch, which an isolated one does not)'
        )
    found = torch.__version__.split('.')
    if (int(found[0]), int(found[1])) < OLDEST_TORCH:
        return f'it needs PyTorch 2.10 or newer, got {torch.__version__}'
    try:
        _, mark, after = path.read_bytes().partition(MARK)
    except OSError as error:
        return f'{path} cannot be read: {error}'
    if not mark:
        return f'{path} is not the library of mmlaplacian'
    built = after.partition(b'\0')[0].decode(errors='replace')
    present = code_hashes()
    if built != present:
        names = ', '.join(changed_files(built, present))
        return f'{path} was built from other code of these files: {names}'
    return None


class CompiledKernels:
    """Compiled CPU library of this process.

    Args:
        folder: Where to look for the library.

    Attributes:
        unavailable_reason: Why the library is not in use, or None.
    """

    def __init__(self, folder: Path):
        found = sorted(folder.glob('_C.*so'))
        self._library = None
        self.unavailable_reason = reason_not_to_load(
            found[0] if found else None
        )
        if self.unavailable_reason:
            return
        try:
            torch.ops.load_library(str(found[0]))
            self._library = ctypes.CDLL(str(found[0]))
        except OSError as error:
            reason = error.__cause__ or error
            self.unavailable_reason = f'{found[0]} does not load: {reason}'
            return
        self._library.mmlaplacian_variant.restype = ctypes.c_char_p

    @property
    def variant(self) -> str | None:
        """Instruction set in use, of :data:`VARIANTS`; None if not loaded."""
        if self._library is None:
            return None
        return self._library.mmlaplacian_variant().decode()

    def use_variant(self, name: str | None = None) -> None:
        """Choose the instruction set, for tests and comparisons.

        Args:
            name: One of :data:`VARIANTS`. Default: None, the fastest one that
                this processor has.

        Raises:
            ValueError: If the name is unknown, the processor lacks the
                instruction set, or the library is not loaded.
        """
        done = self._library is not None and self._library.mmlaplacian_choose(
            (name or '').encode()
        )
        if not done:
            raise ValueError(
                f'use_variant: expected one of {VARIANTS} that this '
                f'{platform.machine()} processor has, got {name!r}'
            )


COMPILED = CompiledKernels(PACKAGE)
if COMPILED.unavailable_reason:
    warnings.warn(
        f'cuda_ops: the compiled CPU kernels are not in use: '
        f'{COMPILED.unavailable_reason}. The slower PyTorch form runs '
        f'instead; {HOW_TO_BUILD}',
        stacklevel=2,
    )
