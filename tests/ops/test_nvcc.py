"""Compilation of the CUDA kernels, and its cache, with a fake nvcc."""

import multiprocessing

import pytest

from cuda_ops.common import nvcc
from cuda_ops.common.nvcc import CudaSource
from cuda_ops.newton_schulz.cuda import SOURCE

FAKE_NVCC = """#!/bin/sh
case "$1" in --version) echo version; exit 0;; esac
echo run >> "{log}"
while [ "$1" != -o ]; do shift; done
for i in 1 2 3 4 5 6 7 8; do printf 0123456789abcdef >> "$2"; sleep 0.05; done
"""
CODE = b'0123456789abcdef' * 8


@pytest.fixture
def fake_nvcc(monkeypatch, tmp_path):
    """Install an nvcc that writes slowly; return the log of its runs."""
    log = tmp_path / 'log'
    program = tmp_path / 'cuda' / 'bin' / 'nvcc'
    program.parent.mkdir(parents=True)
    program.write_text(FAKE_NVCC.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv('CUDA_HOME', str(tmp_path / 'cuda'))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(
        CudaSource, 'fatbin', lambda source: tmp_path / source.path.stem
    )
    return log


def load_many(count, queue):
    queue.put([nvcc.load(SOURCE, '90') for _ in range(count)])


def test_processes_share_the_cache(fake_nvcc, tmp_path):
    context = multiprocessing.get_context('fork')
    queue = context.Queue()
    workers = [
        context.Process(target=load_many, args=(count, queue))
        for count in (1, 1, 40)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert set(queue.get(timeout=60)) == {CODE}
    for worker in workers:
        worker.join()
    runs = len(fake_nvcc.read_text().splitlines())
    assert runs <= 3
    assert nvcc.load(SOURCE, '90') == CODE
    assert len(fake_nvcc.read_text().splitlines()) == runs
    (kept,) = (tmp_path / 'cache' / 'mmlaplacian').iterdir()
    assert kept.read_bytes() == CODE


def test_the_cache_distinguishes_code(fake_nvcc, monkeypatch):
    for architecture in ('90', '80', '90'):
        nvcc.load(SOURCE, architecture)
    assert len(fake_nvcc.read_text().splitlines()) == 2
    monkeypatch.setattr(nvcc, '_nvcc_version', lambda path: 'newer')
    nvcc.load(SOURCE, '90')
    monkeypatch.setattr(nvcc, 'FLAGS', ('-O1',))
    nvcc.load(SOURCE, '90')
    assert len(fake_nvcc.read_text().splitlines()) == 4


def test_a_cache_that_cannot_be_written(fake_nvcc, monkeypatch, tmp_path):
    (tmp_path / 'file').write_text('not a folder')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert nvcc.load(SOURCE, '90') == CODE


def test_a_fatbin_comes_first(fake_nvcc, tmp_path):
    (tmp_path / 'newton_schulz').write_bytes(b'fatbin')
    assert nvcc.load(SOURCE, '90') == b'fatbin'
    assert not fake_nvcc.exists()


def test_a_failing_nvcc_is_quoted(fake_nvcc, tmp_path):
    program = tmp_path / 'cuda' / 'bin' / 'nvcc'
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] || { echo no such arch >&2; exit 1; }'
    )
    with pytest.raises(nvcc.BuildError, match='no such arch'):
        nvcc.load(SOURCE, '90')


def test_a_fatbin_of_other_sources_is_not_found(monkeypatch, tmp_path):
    copy = tmp_path / SOURCE.path.name
    copy.write_bytes(SOURCE.path.read_bytes())
    header = tmp_path / nvcc.HEADER.name
    header.write_bytes(nvcc.HEADER.read_bytes())
    monkeypatch.setattr(nvcc, 'HEADER', header)
    source = SOURCE._replace(path=copy)
    assert source.fatbin().name == SOURCE.fatbin().name
    for path in (header, copy):
        before = source.fatbin().name
        with open(path, 'a') as file:
            file.write('\n')
        assert source.fatbin().name != before


def test_constants(tmp_path):
    path = tmp_path / 'kernel.cu'
    path.write_text(
        'constexpr int kTile = 4;  // comment\n'
        'constexpr int kSum = kTile + 1;\n'
        'constexpr float kLimit = 2;\n'
    )
    assert nvcc.CudaSource(path, ()).constants() == {'kTile': 4}
