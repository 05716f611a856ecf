"""Compile the CUDA kernels for all supported architectures.

Without this step, nvcc compiles them at their first use. A wheel that is built
after it includes the kernels, so that it needs no nvcc.
"""

import sys

from cuda_ops.common.nvcc import ARCHITECTURES, BuildError, build_fatbins


def main():
    try:
        files = build_fatbins()
    except BuildError as error:
        sys.exit(f'ERROR: {error}')
    print('kernels for', ', '.join(f'sm_{a}' for a in ARCHITECTURES))
    for path in files:
        print(f'{path}: {path.stat().st_size / 1e6:.1f} MB')


if __name__ == '__main__':
    main()
