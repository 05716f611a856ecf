"""Compiles the CUDA sources for the CPU and launches their kernels there."""

import ctypes
import subprocess
from pathlib import Path

from cuda_ops.cuda_build import FOLDER
from cuda_ops.cuda_launch import SOURCES, Launch, kernel_names

SHIM = Path(__file__).parent
RESULTS = [
    'ok',
    'threads wait at different barriers',
    'a write beyond the shared memory of the launch',
    'a launch that a GPU refuses, or a parameter struct of another size',
]


class Emulator:
    """A launcher as :class:`cuda_ops.cuda_runtime.Launcher`, on the CPU.

    Attributes:
        most_shared: Bytes of shared memory that a block can have.
        backwards: Whether threads and blocks run in the reverse order.
        folder: Where the libraries are.
        launches: Every launch so far.
    """

    def __init__(self, compiler: str | None, folder: Path) -> None:
        """Load both sources' libraries.

        Args:
            compiler: g++, to compile them first; None where they are there.
            folder: Where the libraries are.
        """
        self.most_shared = 227 * 1024
        self.backwards = False
        self.folder = folder
        self.launches: list[Launch] = []
        self._functions = {}
        self._libraries = []
        for source in SOURCES:
            library = folder / f'{source}.so'
            if compiler:
                subprocess.run(
                    [
                        *(compiler, '-std=c++17', '-O2', '-ffp-contract=off'),
                        # Fortified jumps refuse to leave a fiber's stack.
                        *('-U_FORTIFY_SOURCE', '-shared', '-fPIC'),
                        *(f'-I{SHIM}', f'-I{FOLDER}'),
                        *(SHIM / f'{source}.cpp', '-o', library),
                    ],
                    check=True,
                )
            functions = ctypes.CDLL(str(library))
            functions.barriers.restype = ctypes.c_ulonglong
            self._libraries.append(functions)
            for name in kernel_names(source):
                self._functions[name] = functions[f'run_{name}']

    def barriers(self) -> int:
        """How many barriers blocks have met so far."""
        return sum(library.barriers() for library in self._libraries)

    def __call__(self, launch: Launch) -> None:
        self.launches.append(launch)
        result = self._functions[launch.kernel](
            launch.arguments,
            *(len(launch.arguments), launch.grid, launch.block),
            *(launch.shared, self.backwards),
        )
        if result != 0:
            raise RuntimeError(f'{launch.kernel}: {RESULTS[result]}')
