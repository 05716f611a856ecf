"""Imports point down, and the wheel holds what it should."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cuda_ops import COMPILED

ROOT = Path(__file__).resolve().parent.parent
#: Modules of this repository and of OpenMMLab that each layer may import,
#: lowest layer first. A layer is a folder or a file.
LAYERS = {
    'cuda_ops/common': {'cuda_ops.common'},
    'cuda_ops': {'cuda_ops'},
    'mmlaplacian/models': {'cuda_ops', 'mmlaplacian.models', 'mmengine'},
    'mmlaplacian/hooks': {
        'mmlaplacian.hooks',
        'mmlaplacian.models',
        'mmengine',
    },
    'mmlaplacian/errors.py': set(),
    'mmlaplacian/check_env.py': {'mmlaplacian.errors', 'mmcv'},
    'mmlaplacian/datasets': {'mmlaplacian.datasets', 'mmlaplacian.errors'},
    'mmlaplacian/checkpoints': {
        'mmlaplacian.checkpoints',
        'mmlaplacian.errors',
        'mmlaplacian.models',
        'mmengine',
    },
    'mmlaplacian/launch': {
        'mmlaplacian.check_env',
        'mmlaplacian.errors',
        'mmlaplacian.launch',
        'mmengine',
    },
    'mmlaplacian/checks': {
        'mmlaplacian.checkpoints',
        'mmlaplacian.checks',
        'mmlaplacian.datasets',
        'mmlaplacian.errors',
        'mmlaplacian.launch',
        'mmcv',
        'mmengine',
    },
    'mmlaplacian/experiments': {
        'mmlaplacian.errors',
        'mmlaplacian.experiments',
        'mmengine',
    },
    'mmlaplacian/apis': {'mmlaplacian.apis', 'mmlaplacian.models'},
    'tools': {'cuda_ops', 'mmlaplacian', 'mmcv', 'mmdet', 'mmengine', 'mmseg'},
}
OURS = {
    *('cuda_ops', 'mmlaplacian', 'tools', 'tests'),
    *('mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg'),
}


def imported(path):
    """Full names of the modules that a file imports."""
    package = path.relative_to(ROOT).with_suffix('').parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: -node.level] if node.level else ()
            module = '.'.join([*start, *filter(None, [node.module])])
            yield module
            yield from (f'{module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('layer', LAYERS)
def test_imports_point_down(layer):
    place = ROOT / layer
    wrong = [
        (path.name, name)
        for path in ([place] if place.is_file() else place.rglob('*.py'))
        for name in imported(path)
        if name.split('.')[0] in OURS
        and name != 'mmlaplacian'
        and not any(
            name == allowed or name.startswith(f'{allowed}.')
            for allowed in LAYERS[layer]
        )
    ]
    assert not wrong


def test_every_module_is_in_a_layer():
    known = {ROOT / layer for layer in LAYERS}
    known |= {
        ROOT / 'mmlaplacian/__init__.py',
        ROOT / 'mmlaplacian/version.py',
    }
    for folder in ('cuda_ops', 'mmlaplacian', 'tools'):
        for path in (ROOT / folder).rglob('*.py'):
            assert known & {path, *path.parents}, path


def modules_after(statement, blocked=()):
    code = (
        f'import sys\nfor name in {tuple(blocked)!r}:\n'
        f'    sys.modules[name] = None\n{statement}\nprint(*sys.modules)'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return {name.split('.')[0] for name in result.stdout.split()}


def test_operators_load_torch_only():
    loaded = modules_after('import cuda_ops')
    assert not {'mmengine', 'mmcv', 'mmdet', 'mmseg', 'pycuda'} & loaded


def test_models_load_no_detector():
    loaded = modules_after('import mmlaplacian, mmlaplacian.models')
    assert 'mmengine' in loaded
    assert not {'mmcv', 'mmdet', 'mmseg', 'cv2', 'pycocotools'} & loaded


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp('wheel')
    copy = tmp_path_factory.mktemp('source') / 'mmlaplacian'
    files = subprocess.run(
        [
            'git',
            'ls-files',
            '-z',
            '--cached',
            '--others',
            '--exclude-standard',
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split('\0')
    for name in filter(None, files):
        if (ROOT / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [
            *(sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps'),
            *('--no-build-isolation', '--wheel-dir', str(out), str(copy)),
        ],
        check=True,
    )
    return next(out.glob('*.whl'))


def test_wheel_holds_two_packages_and_the_configs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split('/')[0] for n in names if '.dist-info/' not in n}
    assert tops == {'mmlaplacian', 'cuda_ops'}
    carried = {n for n in names if n.startswith('mmlaplacian/.mim/')}
    for folder, suffix in (('configs', '.py'), ('tools', '.py')):
        for path in (ROOT / folder).rglob(f'*{suffix}'):
            name = path.relative_to(ROOT).as_posix()
            assert f'mmlaplacian/.mim/{name}' in carried, name
    assert 'mmlaplacian/.mim/model-index.yml' in carried
    assert 'mmlaplacian/.mim/configs/experiments.yml' in carried
    assert any(n.endswith('metafile.yml') for n in carried)
    assert not any('__pycache__' in n for n in names)
    # nvcc compiles .cu files at their first use; the hashes of the C++ files
    # tell whether the CPU library is up to date.
    for path in (ROOT / 'cuda_ops').rglob('*.*'):
        if path.suffix in ('.so', '.pyc', '.fatbin'):
            continue
        assert path.relative_to(ROOT).as_posix() in names, path


def test_wheel_carries_the_compiled_kernels(wheel, tmp_path, pytestconfig):
    if COMPILED.unavailable_reason and not pytestconfig.getoption(
        '--require-compiled'
    ):
        pytest.skip(COMPILED.unavailable_reason)
    zipfile.ZipFile(wheel).extractall(tmp_path)
    result = subprocess.run(
        [sys.executable, '-m', 'cuda_ops'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.stdout.startswith('cpu: compiled, '), result.stderr


BUILD = """
import sys, runpy
sys.argv = ['setup.py', 'build_ext', '--build-lib', 'lib', '--build-temp', 't']
{}
runpy.run_path('setup.py', run_name='__main__')
"""


@pytest.mark.parametrize(
    'change, said',
    [
        ("sys.modules['torch'] = None", '--no-build-isolation'),
        ("import os; os.environ.update(CC='none', CXX='none')", 'none'),
    ],
    ids=['no torch', 'no compiler'],
)
def test_a_build_without_its_tools_goes_on(change, said, tmp_path):
    for name in ('setup.py', 'setup.cfg', 'README.md'):
        shutil.copy(ROOT / name, tmp_path)
    for name in ('cuda_ops', 'mmlaplacian'):
        shutil.copytree(ROOT / name, tmp_path / name)
    result = subprocess.run(
        [sys.executable, '-c', BUILD.format(change)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert said in result.stderr + result.stdout
    assert not list((tmp_path / 'lib').rglob('*.so'))


def test_installed_config_loads_from_any_directory(wheel, tmp_path):
    site = tmp_path / 'site'
    zipfile.ZipFile(wheel).extractall(site)
    config = next(
        (site / 'mmlaplacian/.mim/configs/mask_rcnn').glob('*tiny*.py')
    )
    code = (
        f'import sys; sys.path.insert(0, {str(site)!r})\n'
        'from mmengine.config import Config\n'
        f'c = Config.fromfile({str(config)!r})\n'
        'import mmlaplacian; print(mmlaplacian.__file__, c.model.type)'
    )
    result = subprocess.run(
        [sys.executable, '-c', code],
        cwd='/',
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert str(site) in result.stdout and 'MaskRCNN' in result.stdout


def test_without_mmengine_the_backbone_says_what_is_missing():
    block = (
        'import importlib.util as u; find = u.find_spec\n'
        'u.find_spec = lambda n: None if n == "mmengine" else find(n)\n'
        'import mmlaplacian\n'
        'from mmlaplacian.models import LaplacianAttention\n'
        'try:\n'
        '    from mmlaplacian.models import LaplacianFormer\n'
        'except ImportError as error:\n'
        '    assert "needs mmengine" in str(error), error\n'
        'else:\n'
        '    raise AssertionError'
    )
    modules_after(block, blocked=['mmengine'])
