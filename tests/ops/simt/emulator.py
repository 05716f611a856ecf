"""Emulation of the CUDA kernels: compiles their sources for the CPU."""

import ctypes
import struct
import subprocess
from pathlib import Path

import numpy as np

from cuda_ops.common.launcher import Launch, kernel_names
from cuda_ops.common.nvcc import FOLDER, SOURCES

SHIM = Path(__file__).parent
RESULTS = [
    'ok',
    'threads wait at different barriers',
    'a write beyond the shared memory of the launch',
    'a launch that a GPU refuses, or parameters of another size',
]


def pack(arguments: tuple[np.generic, ...]) -> bytes:
    """Lay out kernel arguments as ``pycuda.driver.Function`` does.

    It aligns numbers as C does, but not the bytes of ``np.void``.
    """
    codes = [
        f'{a.nbytes}s' if isinstance(a, np.void) else a.dtype.char
        for a in arguments
    ]
    values = [
        a.tobytes() if isinstance(a, np.void) else a.item() for a in arguments
    ]
    return struct.pack(''.join(codes), *values)


class Emulator:
    """Replacement on the CPU of :class:`cuda_ops.common.launcher.Launcher`.

    Attributes:
        max_shared: Bytes of shared memory that a block can have.
        backwards: Whether threads and blocks run in the reverse order.
        folder: Folder of the libraries.
        launches: Launches so far.
    """

    def __init__(self, compiler: str | None, folder: Path) -> None:
        """Load a library for each source.

        Args:
            compiler: C++ compiler that builds the libraries first; None if
                ``folder`` holds them.
            folder: Folder of the libraries.
        """
        self.max_shared = 227 * 1024
        self.backwards = False
        self.folder = folder
        self.launches: list[Launch] = []
        self._functions = {}
        self._libraries = []
        for source in SOURCES:
            names = kernel_names(source.kernels)
            library = folder / f'{source.path.stem}.so'
            if compiler:
                compile_for_cpu(compiler, source.path, names, library)
            functions = ctypes.CDLL(str(library))
            functions.barriers.restype = ctypes.c_ulonglong
            self._libraries.append(functions)
            for name in names:
                self._functions[name] = functions[f'run_{name}']

    def barriers(self) -> int:
        """Number of barriers that blocks have reached so far."""
        return sum(library.barriers() for library in self._libraries)

    def __call__(self, launch: Launch) -> None:
        self.launches.append(launch)
        parameters = pack(launch.arguments)
        result = self._functions[launch.kernel](
            parameters,
            *(len(parameters), launch.grid, launch.block),
            *(launch.shared, self.backwards),
        )
        if result != 0:
            raise RuntimeError(f'{launch.kernel}: {RESULTS[result]}')


def compile_for_cpu(
    compiler: str, source: Path, kernels: list[str], library: Path
) -> None:
    """Compile a CUDA source with functions that run its kernels."""
    text = [f'#include "{name}"' for name in ('simt.h', source)]
    text += [f'SIMT_KERNEL({name})' for name in kernels]
    subprocess.run(
        [
            *(compiler, '-std=c++17', '-O2', '-ffp-contract=off'),
            # Fortified jumps refuse to leave a fiber's stack.
            *('-U_FORTIFY_SOURCE', '-shared', '-fPIC'),
            *(f'-I{SHIM}', f'-I{FOLDER}', '-x', 'c++', '-', '-o', library),
        ],
        input='\n'.join(text),
        text=True,
        check=True,
    )
