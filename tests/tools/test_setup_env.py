"""Checks of the set-up before it installs anything."""

import importlib.util
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / 'tools/misc/setup_env.py'
Usage = namedtuple('Usage', 'total used free')


@pytest.fixture
def setup_env():
    spec = importlib.util.spec_from_file_location('setup_env', PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_missing_part_is_one_line(setup_env, monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env, 'find_spec', lambda name: None)
    monkeypatch.setattr(setup_env.sys, 'version_info', (3, 9, 1))
    monkeypatch.setattr(
        setup_env.sysconfig, 'get_paths', lambda: dict(include='/nowhere')
    )
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: Usage(9, 8, 1e9))
    problems = setup_env.missing_parts(tmp_path / 'venv')
    assert len(problems) == 5
    for problem, part in zip(
        problems,
        ('this is 3.9', 'python3-venv', 'python3-dev', 'g++', '1.0 are free'),
        strict=True,
    ):
        assert part in problem and '\n' not in problem


def test_nothing_is_missing_where_the_tests_run(setup_env, tmp_path):
    assert setup_env.missing_parts(tmp_path) == []


def test_a_folder_with_other_files_is_not_touched(tmp_path):
    (tmp_path / 'mine').write_text('x')
    result = subprocess.run(
        [sys.executable, PATH, '--venv', tmp_path],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert 'was not created here' in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ['mine']


def test_the_torch_of_an_environment_is_kept(tmp_path):
    (tmp_path / 'mmlaplacian-setup.txt').write_text('torch: torch==2.4.0\n')
    (tmp_path / 'bin').mkdir()
    fake = tmp_path / 'bin' / 'python'
    fake.write_text('#!/bin/sh\necho "$@"\nexit 3\n')
    fake.chmod(0o755)
    result = subprocess.run(
        [sys.executable, PATH, '--venv', tmp_path],
        capture_output=True,
        text=True,
    )
    # The first step fails, with its log; the environment was accepted.
    assert 'this step failed: build tools' in result.stderr
    assert 'pip install' in result.stderr


def test_another_torch_needs_another_folder(tmp_path):
    (tmp_path / 'mmlaplacian-setup.txt').write_text('torch: torch==2.4.0\n')
    result = subprocess.run(
        [sys.executable, PATH, '--venv', tmp_path, '--torch', 'torch==2.9'],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert 'created with torch: torch==2.4.0' in result.stderr


@pytest.mark.parametrize(
    'made, options', [('', ['--pretrain']), ('for: pretraining\n', [])]
)
def test_an_environment_serves_one_purpose(tmp_path, made, options):
    mark = tmp_path / 'mmlaplacian-setup.txt'
    mark.write_text(f'torch: torch==2.4.0\n{made}recipe: 12ab\n')
    result = subprocess.run(
        [sys.executable, PATH, '--venv', tmp_path, *options],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert 'for: pretraining' in result.stderr
    assert 'VENV_PRETRAIN=DIR' in result.stderr


def test_pretraining_takes_mmcv_without_operators(tmp_path):
    purpose = 'for: pretraining\n'
    mark = tmp_path / 'mmlaplacian-setup.txt'
    mark.write_text(f'torch: torch==2.14.1\n{purpose}')
    (tmp_path / 'bin').mkdir()
    fake = tmp_path / 'bin' / 'python'
    fake.write_text('#!/bin/sh\necho 2.14.1\n')
    fake.chmod(0o755)
    command = [sys.executable, PATH, '--venv', tmp_path, '--pretrain']
    subprocess.run(command, check=True)
    log = (tmp_path / 'mmlaplacian-setup.log').read_text().splitlines()
    mmcv, kernels = (line for line in log if '--editable' in line)
    # A build that is isolated from PyTorch; a wheel would have operators.
    assert '--no-binary=onedl-mmcv' in mmcv and '[pretrain,dev]' in mmcv
    assert '--no-build-isolation' not in mmcv and '--constraint' in mmcv
    assert '--no-build-isolation --no-deps' in kernels
    constraint = tmp_path / 'mmlaplacian-constraint.txt'
    assert constraint.read_text() == 'torch==2.14.1\n'
    assert purpose + 'recipe: ' in mark.read_text()


@pytest.mark.parametrize(
    'wanted, nvcc, built',
    [
        ('', None, {}),
        ('13.0', 'Cuda compilation tools, release 13.1, V13', '1'),
        ('12.8', 'Cuda compilation tools, release 13.1, V13', '0'),
        ('12.8', None, '0'),
    ],
)
def test_mmcv_gets_cuda_only_from_a_matching_nvcc(
    setup_env, monkeypatch, tmp_path, capsys, wanted, nvcc, built
):
    environment = setup_env.Environment(tmp_path)
    monkeypatch.setattr(environment, 'evaluate', lambda code: wanted)
    monkeypatch.setattr(shutil, 'which', lambda name: nvcc and 'nvcc')
    monkeypatch.setattr(
        setup_env.subprocess,
        'run',
        lambda *a, **k: namedtuple('Result', 'stdout')(nvcc),
    )
    variables = setup_env.cuda_variables(environment)
    assert variables.get('FORCE_CUDA', {}) == built
    said = capsys.readouterr().out
    assert ('WITHOUT CUDA' in said) == (built == '0')
