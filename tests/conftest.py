"""Options, devices and seeds for every test."""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption(
        '--require-openmmlab',
        action='store_true',
        help='fail instead of skipping if mmcv, mmdet or mmseg is missing',
    )
    parser.addoption(
        '--require-mmpretrain',
        action='store_true',
        help='fail instead of skipping if mmpretrain is missing',
    )
    parser.addoption(
        '--require-cuda',
        action='store_true',
        help='fail instead of skipping without a GPU',
    )
    parser.addoption(
        '--require-compiled',
        action='store_true',
        help='fail instead of skipping without the compiled CPU kernels',
    )


def pytest_report_header():
    """Name the CPU kernels under test."""
    import cuda_ops

    compiled = cuda_ops.COMPILED
    state = compiled.unavailable_reason or f'compiled, {compiled.variant}'
    return f'CPU kernels: {state}'


def pytest_collection_modifyitems(items):
    """Start with the longest files, so that parallel runs end together."""
    items.sort(key=lambda item: 'integration' not in item.path.parts)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=['cpu', 'cuda'])
def device(request):
    """Every device of this machine."""
    if request.param == 'cuda' and not torch.cuda.is_available():
        if request.config.getoption('--require-cuda'):
            pytest.fail('--require-cuda: PyTorch sees no GPU')
        pytest.skip('PyTorch sees no GPU')
    return torch.device(request.param)


@pytest.fixture
def gpu(request):
    """A GPU that runs the operators' kernels; skips without one."""
    from cuda_ops.common import launcher

    status = 'PyTorch sees no GPU'
    if torch.cuda.is_available():
        status = launcher.status(0)
    if status != launcher.IN_USE:
        if request.config.getoption('--require-cuda'):
            pytest.fail(f'--require-cuda: {status}')
        pytest.skip(status)
    return torch.device('cuda')


@pytest.fixture(scope='session')
def openmmlab(request):
    """The mmdet module; skips if it does not import."""
    try:
        import mmcv._ext  # noqa: F401
        import mmdet
    except ImportError as error:
        if request.config.getoption('--require-openmmlab'):
            pytest.fail(f'--require-openmmlab: {error}')
        pytest.skip(f'detectors cannot be built: {error}')
    return mmdet


@pytest.fixture(scope='session')
def mmpretrain(request):
    """The mmpretrain module; skips if it does not import."""
    try:
        import mmpretrain
    except ImportError as error:
        if request.config.getoption('--require-mmpretrain'):
            pytest.fail(f'--require-mmpretrain: {error}')
        pytest.skip(
            f'classifiers need the environment of make test-pretrain: {error}'
        )
    return mmpretrain


@pytest.fixture(scope='session')
def digit_scenes(tmp_path_factory):
    """Folder of 12 digit scenes in the format of prepare_data.py."""
    from mmlaplacian.datasets.digits import write_digits

    out = tmp_path_factory.mktemp('data') / 'digits'
    write_digits(out, dict(train=8, val=4))
    return out
