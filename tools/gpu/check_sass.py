"""Count the machine instructions per element of the CUDA kernels.

An element is one token, landmark and feature (n, m, d). The script compiles
``cuda_ops/laplacian_kernel/laplacian_kernel.cu``, disassembles it and reads
the innermost loops. It exits with 1 if a loop exceeds its bound.

    python tools/gpu/check_sass.py [--arch 80 90]

It needs nvcc, and nvdisasm from the CUDA toolkit or from ``pip install
nvidia-cuda-nvdisasm``.
"""

import argparse
import functools
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

from cuda_ops.common.nvcc import BuildError, compile_source, nvcc
from cuda_ops.laplacian_kernel.cuda import SOURCE

DTYPE = 'float32'


class Kernel(NamedTuple):
    """A kernel and the bounds of its inner loop.

    Attributes:
        name: Name of the kernel without its dtype.
        element: Pattern of an instruction that runs once per element.
        bound: Maximum number of arithmetic instructions per element.
        bound_all: Maximum number of all instructions per element.
        published: Arithmetic instructions per element in the operators that
            the paper's authors published, compiled with nvcc 13.0.
    """

    name: str
    element: str
    bound: int
    bound_all: float
    published: int


KERNELS = (
    Kernel('laplacian_forward', r'FADD .*\|', 2, 2.5, 4),
    Kernel('laplacian_backward', r'FFMA\.SAT ', 4, 5.5, 14),
)
#: Arithmetic once per loop body, which adds up partial sums.
LOOP_ALLOWANCE = 4
#: Float arithmetic, conversions and special functions.
ARITHMETIC = re.compile(r'F(ADD|FMA|MUL|MNMX|SEL|SET|SETP|CHK)|MUFU|[IF]2[IF]')
#: Register spills, which must not occur in an inner loop.
SPILL = re.compile(r'(LDL|STL)\b')
#: Loops with fewer elements handle a remainder or an epilogue.
LEAST_ELEMENTS = 32


def nvdisasm() -> str | None:
    """Path of nvdisasm, from the toolkit, the PATH or a pip package."""
    folders = [
        str(Path(nvcc()).parent),
        *map(str, Path(sysconfig.get_path('purelib')).glob('nvidia/*/bin')),
    ]
    return shutil.which('nvdisasm') or shutil.which(
        'nvdisasm', path=':'.join(folders)
    )


@functools.cache
def disassemble(arch: str, disassembler: str) -> str:
    """SASS of the kernels for one architecture, such as ``'90'``."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, 'kernels.cubin')
        compile_source(SOURCE, cubin, '-cubin', f'-arch=sm_{arch}')
        return subprocess.run(
            [disassembler, '-c', cubin],
            check=True,
            capture_output=True,
            text=True,
        ).stdout


def inner_loops(sass: str, kernel: str) -> list[list[str]]:
    """Instructions of each innermost loop."""
    section = re.search(
        rf'\.section\s+\.text\.{kernel}\b.*?(?=\.section\s|\Z)',
        sass,
        re.DOTALL,
    )
    if section is None:
        raise ValueError(f'{kernel} is not in the disassembly')
    labels, instructions = {}, []
    for line in section[0].splitlines():
        label = re.match(r'\s*(\.L_x_\d+):', line)
        if label:
            labels[label[1]] = len(instructions)
        instruction = re.search(r'/\*[0-9a-f]+\*/\s+(.*?)\s*;', line)
        if instruction:
            instructions.append(re.sub(r'^@!?U?P\d ', '', instruction[1]))
    loops = []
    for end, instruction in enumerate(instructions):
        target = re.search(r'^BRA.*`\((\.L_x_\d+)\)', instruction)
        if target and labels[target[1]] < end:
            loops.append((labels[target[1]], end))
    return [
        instructions[start : end + 1]
        for start, end in loops
        if not any(
            start <= s and e <= end for s, e in loops if (s, e) != (start, end)
        )
    ]


def check(arch: str, disassembler: str) -> tuple[list[list], bool]:
    """Rows of the table for one architecture, and whether all meet the bounds.

    Raises:
        ValueError: A kernel has no loop over elements.
    """
    sass = disassemble(arch, disassembler)
    rows, good = [], True
    for kernel in KERNELS:
        found = 0
        for body in inner_loops(sass, f'{kernel.name}_{DTYPE}'):
            elements = sum(bool(re.match(kernel.element, i)) for i in body)
            if elements < LEAST_ELEMENTS:
                continue
            found += 1
            arithmetic = sum(bool(ARITHMETIC.match(i)) for i in body)
            fits = (
                arithmetic <= kernel.bound * elements + LOOP_ALLOWANCE
                and len(body) <= kernel.bound_all * elements
                and not any(SPILL.match(i) for i in body)
            )
            good &= fits
            rows.append(
                [
                    *(f'sm_{arch}', kernel.name, elements, arithmetic),
                    *(f'{arithmetic / elements:.2f}', kernel.bound),
                    *(kernel.published, len(body)),
                    *(f'{len(body) / elements:.2f}', kernel.bound_all),
                    'yes' if fits else 'NO',
                ]
            )
        if not found:
            raise ValueError(f'sm_{arch}: {kernel.name} has no inner loop')
    return rows, good


HEADER = (
    *('GPU', 'kernel', 'elements', 'arithmetic', 'per element', 'bound'),
    *('published', 'all', 'per element', 'bound', 'in bounds'),
)


def main() -> int:
    """Print the table; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        '--arch',
        nargs='+',
        default=['80', '90'],
        help='compute capabilities without the dot (default: 80 90)',
    )
    arguments = parser.parse_args()
    disassembler = nvdisasm()
    if disassembler is None:
        raise BuildError(
            'nvdisasm is missing: pip install nvidia-cuda-nvdisasm'
        )
    good = True
    print('|', ' | '.join(HEADER), '|')
    print('|' + '---|' * len(HEADER))
    for arch in arguments.arch:
        rows, fits = check(arch, disassembler)
        good &= fits
        for row in rows:
            print('|', ' | '.join(map(str, row)), '|')
    print(
        '\nOne row for each innermost loop. "arithmetic" are the float '
        f'instructions of its body, in bounds up to {LOOP_ALLOWANCE} more\n'
        'than the bound times the elements (once a row, not once an '
        'element); "all" are all instructions: loads, addresses, branches.\n'
        '"published" was counted in the operators that the authors of the '
        'paper published.'
    )
    return 0 if good else 1


if __name__ == '__main__':
    try:
        sys.exit(main())
    except (BuildError, ValueError) as error:
        sys.exit(f'ERROR: {error}')
