"""Finding, checking and loading the compiled CPU library."""

import shutil
from pathlib import Path

import torch
from helpers import run_python

import cuda_ops
from cuda_ops import COMPILED
from cuda_ops.compiled import CompiledKernels, find_trouble

PACKAGE = Path(cuda_ops.__file__).parent


def test_libraries_that_are_refused(tmp_path, monkeypatch):
    library = tmp_path / '_C.so'
    assert 'not built' in CompiledKernels(tmp_path).trouble
    library.write_bytes(b'\x7fELF, but of another project')
    assert 'is not our library' in CompiledKernels(tmp_path).trouble
    library.write_bytes(b'mmlaplacian-sources:0123456789abcdef')
    assert 'other sources' in CompiledKernels(tmp_path).trouble
    monkeypatch.setattr(torch, '__version__', '2.9.1+cpu')
    assert 'PyTorch 2.10' in find_trouble(library)
    monkeypatch.undo()
    library.unlink()
    library.symlink_to(tmp_path / 'gone')
    assert 'cannot be read' in CompiledKernels(tmp_path).trouble


def package_copy(target):
    """The package alone, without its library; the folder to import from."""
    shutil.copytree(
        PACKAGE,
        target / 'cuda_ops',
        ignore=shutil.ignore_patterns('*.so', '__pycache__'),
    )
    return target


def test_a_broken_library_leaves_the_reference(tmp_path):
    place = package_copy(tmp_path)
    from cuda_ops._sources import MARK, sources_hash

    # The right mark in a file that no loader takes.
    (place / 'cuda_ops' / '_C.so').write_bytes(
        MARK + sources_hash().encode() + b'\0'
    )
    text = run_python(
        place,
        '-c',
        'import torch, cuda_ops; print(cuda_ops.__file__);'
        'print(cuda_ops.laplacian_kernel(torch.ones(1, 2), torch.ones(1, 2)))',
    )
    assert str(place) in text and 'tensor([[1.]])' in text
    assert text.count('does not load') == 1


def test_status_command(tmp_path):
    here = run_python(tmp_path, '-m', 'cuda_ops')
    expected = COMPILED.trouble or f'compiled, {COMPILED.variant}'
    assert here.startswith('cpu: ') and expected in here
    without = run_python(
        package_copy(tmp_path), '-W', 'ignore', '-m', 'cuda_ops'
    )
    assert 'cpu: plain PyTorch (they were not built' in without
