"""Finding, checking and loading the compiled CPU library."""

import shutil

import pytest
import torch
from helpers import run_python

from cuda_ops import COMPILED
from cuda_ops.common.compiled import CompiledKernels, reason_not_to_load
from cuda_ops.common.sources import (
    MARK,
    PACKAGE,
    changed_files,
    code_hashes,
)


def test_libraries_that_are_refused(tmp_path, monkeypatch):
    library = tmp_path / '_C.so'
    assert 'not built' in CompiledKernels(tmp_path).unavailable_reason
    library.write_bytes(b'\x7fELF, but of another project')
    assert (
        'is not the library of mmlaplacian'
        in CompiledKernels(tmp_path).unavailable_reason
    )
    entry = code_hashes().split(',')[0]
    library.write_bytes(MARK + code_hashes().replace(entry, 'a.h=0').encode())
    files = f'a.h, {entry.partition("=")[0]}'
    assert (
        f'these files: {files}' in CompiledKernels(tmp_path).unavailable_reason
    )
    monkeypatch.setattr(torch, '__version__', '2.9.1+cpu')
    assert 'PyTorch 2.10' in reason_not_to_load(library)
    monkeypatch.undo()
    library.unlink()
    library.symlink_to(tmp_path / 'gone')
    assert 'cannot be read' in CompiledKernels(tmp_path).unavailable_reason


def test_only_code_changes_disable_the_library(tmp_path):
    package = package_copy(tmp_path) / 'cuda_ops'
    header = package / 'laplacian_kernel' / 'forward.h'
    text = header.read_text()
    assert code_hashes(package) == code_hashes()
    header.write_text('/* A comment\n */ // and "one more"\n\n' + text)
    assert code_hashes(package) == code_hashes()
    header.write_text(text + 'int added;\n')
    assert changed_files(code_hashes(), code_hashes(package)) == [
        'laplacian_kernel/forward.h'
    ]


@pytest.mark.parametrize(
    'before, after, same',
    [
        ('f(a,  b);', 'f(a,\n  b); // sum', True),
        ('a /* one\n */ + b', 'a + b', True),
        ('"// text"', '"// other"', False),
        ('"a b"', '"ab"', False),
        (r"'\"' + a; // 1", r"'\"' + b; // 1", False),
        ('#if A', '#if B', False),
    ],
)
def test_code_hash(tmp_path, before, after, same):
    (tmp_path / 'common').mkdir()
    hashes = []
    for text in (before, after):
        (tmp_path / 'common' / 'a.h').write_text(text)
        hashes.append(code_hashes(tmp_path))
    assert (hashes[0] == hashes[1]) == same


def package_copy(target):
    """Copy the package without its library; return the import folder."""
    shutil.copytree(
        PACKAGE,
        target / 'cuda_ops',
        ignore=shutil.ignore_patterns('*.so', '__pycache__'),
    )
    return target


def test_a_broken_library_leaves_the_reference(tmp_path):
    place = package_copy(tmp_path)
    # The file has the right mark, but is not a library.
    (place / 'cuda_ops' / '_C.so').write_bytes(
        MARK + code_hashes().encode() + b'\0'
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
    expected = COMPILED.unavailable_reason or f'compiled, {COMPILED.variant}'
    assert here.startswith('cpu: ') and expected in here
    without = run_python(
        package_copy(tmp_path), '-W', 'ignore', '-m', 'cuda_ops'
    )
    assert 'cpu: plain PyTorch (the library was not built' in without
