"""Environments that cannot work, each with its message."""

import subprocess
import sys
from pathlib import Path

import pytest

from mmlaplacian import check_env
from mmlaplacian.errors import InputError


def run_report(path=''):
    return subprocess.run(
        [sys.executable, '-m', 'mmlaplacian.check_env'],
        capture_output=True,
        text=True,
        env=dict(PYTHONPATH=str(path)),
    )


def test_this_environment(openmmlab):
    result = run_report()
    assert result.returncode == 0, result.stderr
    assert 'mmcv' in result.stdout and 'all packages' in result.stdout


def test_two_distributions_own_one_module(tmp_path, openmmlab):
    for name in ('mmcv', 'mmcv-full'):
        info = tmp_path / f'{name.replace("-", "_")}-1.7.0.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text(
            f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.7.0\n'
        )
        (info / 'RECORD').write_text('mmcv/__init__.py,,\n')
    result = run_report(tmp_path)
    assert result.returncode == 1
    assert 'mmcv and mmcv-full' in result.stderr
    assert 'pip uninstall mmcv mmcv-full' in result.stderr


def test_mmcv_without_operators(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmcv._ext', None)
    with pytest.raises(InputError, match='--no-build-isolation') as caught:
        check_env.check_mmcv_ops()
    assert 'compiled operators' in str(caught.value)


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmseg', None)
    with pytest.raises(InputError, match=r'mmseg.*mmlaplacian\[onedl\]'):
        check_env.check_modules('mmseg')


def test_missing_mmpretrain_names_its_environment(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmpretrain', None)
    with pytest.raises(InputError, match='mmpretrain.*make test-pretrain'):
        check_env.check_modules('mmpretrain')


def test_incompatible_versions(monkeypatch, tmp_path):
    (tmp_path / 'refusing.py').write_text(
        'assert False, "MMCV==2.2.0 is used but incompatible"'
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match='MMCV==2.2.0 is used'):
        check_env.check_modules('refusing')


@pytest.mark.parametrize('tool', ['train', 'test', 'image_demo'])
def test_commands_without_mmengine(tool):
    path = Path(__file__).resolve().parents[1] / 'tools' / f'{tool}.py'
    code = (
        'import sys, importlib.util as u; find = u.find_spec\n'
        'u.find_spec = lambda n: None if n == "mmengine" else find(n)\n'
        'sys.modules["mmengine"] = None\n'
        f'import runpy; runpy.run_path({str(path)!r}, run_name="__main__")'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f'{tool}.py: mmengine cannot be imported')
    assert 'mmlaplacian[onedl]' in result.stderr
    assert 'Traceback' not in result.stderr
