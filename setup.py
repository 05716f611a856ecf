"""Build of the CPU library, and of wheels with configs and tools for mim."""

import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CARRIED = ('configs', 'tools', 'model-index.yml')


class BuildWithConfigs(build_py):
    """Copy :data:`CARRIED` to ``mmlaplacian/.mim/`` of the build."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, 'mmlaplacian', '.mim')
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in CARRIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source,
                    target / name,
                    ignore=shutil.ignore_patterns('__pycache__'),
                )
            else:
                shutil.copy2(source, target)


def relative(paths: list[Path]) -> list[str]:
    """Paths from the root, as setuptools wants them."""
    return [str(path.relative_to(ROOT)) for path in paths]


def cpu_kernels() -> list[Extension]:
    """Return the CPU library, or nothing if it cannot be built."""
    torch = find_spec('torch')
    if torch is None or sys.platform == 'win32':
        print(
            'mmlaplacian: building WITHOUT compiled CPU kernels, because this '
            'build does not see PyTorch or runs on Windows. To build them, '
            'run pip install --no-build-isolation .',
            file=sys.stderr,
        )
        return []
    folder = Path(torch.origin).parent
    sources = runpy.run_path(str(ROOT / 'cuda_ops/common/sources.py'))
    return [
        Extension(
            'cuda_ops._C',
            relative(sources['cpu_sources']()),
            include_dirs=[str(folder / 'include'), 'cuda_ops'],
            library_dirs=[str(folder / 'lib')],
            libraries=['torch_cpu'],
            extra_compile_args=[
                *('-std=c++17', '-O3', '-ffp-contract=fast'),
                '-fvisibility=hidden',
                '-g0',
                # GCC warns about its own headers of intrinsics.
                '-Wno-maybe-uninitialized',
            ],
            define_macros=[
                # The stable interface of PyTorch 2.10.
                ('TORCH_TARGET_VERSION', '0x020a000000000000'),
                ('MMLAPLACIAN_SOURCES', f'"{sources["code_hashes"]()}"'),
            ],
            depends=['setup.py', *relative(sources['cpu_headers']())],
            language='c++',
            py_limited_api=True,
            # Without the library the PyTorch form runs, so only warn.
            optional=True,
        )
    ]


setup(cmdclass=dict(build_py=BuildWithConfigs), ext_modules=cpu_kernels())
