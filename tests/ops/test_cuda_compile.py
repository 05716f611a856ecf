"""Machine code of the CUDA kernels: instructions and parameter layout."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import torch
from simt.emulator import pack

from cuda_ops.common import nvcc as build
from cuda_ops.common.launcher import kernel_names
from cuda_ops.laplacian_kernel import cuda as laplacian
from cuda_ops.newton_schulz import cuda as solver

TOOL = Path(__file__).parents[2] / 'tools/gpu/check_sass.py'


@pytest.fixture(scope='module')
def nvcc():
    try:
        return build.nvcc()
    except build.BuildError as error:
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
        build.CudaSource,
        'fatbin',
        lambda source: tmp_path / f'{source.path.stem}.fatbin',
    )
    build.build_fatbins()
    for source in build.SOURCES:
        code = build.load(source, '90')
        for name in kernel_names(source.kernels):
            assert code.count(name.encode()) >= len(build.ARCHITECTURES)
        assert {path.suffix for path in tmp_path.iterdir()} == {'.fatbin'}


def parameter_layout(disassembly, kernel):
    """Offsets and sizes of a kernel's parameters, as nvcc compiled them."""
    section = re.search(
        rf'\.section\s+\.nv\.info\.{kernel},.*?(?=\.section\s|\Z)',
        disassembly,
        re.DOTALL,
    )[0]
    found = re.findall(
        r'EIATTR_KPARAM_INFO\n.*?\.word\s+\w+\s.*?\.short\s+(\w+)\s'
        r'.*?\.short\s+(\w+)\s.*?\.byte\s+(\w+), (\w+), (\w+), (\w+)',
        section,
        re.DOTALL,
    )
    layout = {}
    for ordinal, offset, *size in found:
        # The upper 14 bits of the last word count bytes.
        word = int.from_bytes(bytes(int(b, 16) for b in size), 'little')
        layout[int(ordinal, 16)] = int(offset, 16), word >> 18
    return [layout[i] for i in range(len(layout))]


def test_pycuda_packs_parameters_as_nvcc_lays_them_out(check_sass, tmp_path):
    x, k = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)
    launches = {
        laplacian.SOURCE: [
            laplacian.launch_forward(x, x, k, 4.0),
            laplacian.launch_backward(k, x, x, k, x, x, 4.0),
            laplacian.launch_reduce(x, x),
        ],
        solver.SOURCE: [solver.launch_inverse(k, k, 9, 0.01, 'identity')],
    }
    assert list(launches) == build.SOURCES
    for source, of_source in launches.items():
        cubin = tmp_path / source.path.stem
        build.compile_source(source, cubin, '-cubin', '-arch=sm_80')
        disassembly = subprocess.run(
            [check_sass.nvdisasm(), cubin],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for launch in of_source:
            packed = []
            for i, argument in enumerate(launch.arguments):
                end = len(pack(launch.arguments[: i + 1]))
                packed.append((end - argument.nbytes, argument.nbytes))
            assert packed == parameter_layout(disassembly, launch.kernel)


@pytest.mark.parametrize('arch', ['80', '90'])
def test_instructions_of_an_element(check_sass, arch):
    rows, good = check_sass.check(arch, check_sass.nvdisasm())
    assert good, rows
    # Elements of a forward tile, and of a backward group.
    assert {(row[1], row[2]) for row in rows} == {
        ('laplacian_forward', 112),
        ('laplacian_backward', 49),
    }


def test_an_additional_instruction_is_found(check_sass, monkeypatch):
    forward, backward = check_sass.KERNELS
    for kernels in (
        (forward._replace(bound=1), backward),
        (forward, backward._replace(bound=3)),
        (forward._replace(bound_all=2), backward),
    ):
        monkeypatch.setattr(check_sass, 'KERNELS', kernels)
        _, good = check_sass.check('90', check_sass.nvdisasm())
        assert not good
