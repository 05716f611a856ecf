"""nvcc compiles the kernels, and their inner loops are lean."""

import importlib.util
from pathlib import Path

import pytest

from cuda_ops import cuda_build, cuda_launch

TOOL = Path(__file__).parents[2] / 'tools/gpu/check_sass.py'


@pytest.fixture(scope='module')
def nvcc():
    try:
        return cuda_build.nvcc()
    except cuda_build.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope='module')
def check_sass(nvcc):
    spec = importlib.util.spec_from_file_location('check_sass', TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.nvdisasm() is None:
        pytest.skip('nvdisasm is missing: pip install nvidia-cuda-nvdisasm')
    return module


def test_fatbins_for_every_architecture(nvcc, monkeypatch, tmp_path):
    monkeypatch.setattr(
        cuda_build, 'fatbin', lambda source: tmp_path / f'{source}.fatbin'
    )
    cuda_build.build_fatbins()
    for source in cuda_launch.SOURCES:
        code = cuda_build.load(source, '90')
        for name in cuda_launch.kernel_names(source):
            assert code.count(name.encode()) >= len(cuda_build.ARCHITECTURES)
        assert {path.suffix for path in tmp_path.iterdir()} == {'.fatbin'}


@pytest.mark.parametrize('arch', ['80', '90'])
def test_instructions_of_an_element(check_sass, arch):
    rows, good = check_sass.check(arch, check_sass.nvdisasm())
    assert good, rows
    # The whole tile of the forward pass, a whole group of the backward pass.
    assert {(row[1], row[2]) for row in rows} == {
        ('laplacian_forward', 112),
        ('laplacian_backward', 49),
    }


def test_one_instruction_more_is_found(check_sass, monkeypatch):
    forward, backward = check_sass.KERNELS
    for kernels in (
        (forward._replace(bound=1), backward),
        (forward, backward._replace(bound=3)),
        (forward._replace(bound_all=2), backward),
    ):
        monkeypatch.setattr(check_sass, 'KERNELS', kernels)
        _, good = check_sass.check('90', check_sass.nvdisasm())
        assert not good
