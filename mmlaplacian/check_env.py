"""Check of the OpenMMLab packages in this environment.

``python -m mmlaplacian.check_env`` prints the installed packages and exits
with 1 if one is missing or broken. ``--pretrain`` checks the environment for
ImageNet instead.
"""

import argparse
import importlib
import re
import sys
from importlib.metadata import distributions

from .errors import InputError

#: Modules that several distributions provide under the same name.
MM_MODULES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain')
INSTALL = (
    'pip install --no-build-isolation "mmlaplacian[onedl]" (add '
    '--force-reinstall if pip reports them as installed)'
)
#: mmpretrain needs torchvision; detection and segmentation do not.
INSTALL_PRETRAIN = (
    'make test-pretrain, which creates the environment .venv-pretrain (or see '
    'configs/imagenet/README.md)'
)
CPU_ONLY = 'CUDA_VISIBLE_DEVICES= (to nothing)'
REBUILD = (
    'pip install --no-build-isolation --no-deps --force-reinstall '
    '--no-cache-dir onedl-mmcv (which needs PyTorch and a C++ compiler)'
)


def module_owners() -> dict[str, list[str]]:
    """Distributions that provide each installed module of MM_MODULES."""
    owners: dict[str, set[str]] = {module: set() for module in MM_MODULES}
    for distribution in distributions():
        # Some distributions do not list their modules in top_level.txt.
        listed = distribution.read_text('top_level.txt') or ''
        record = distribution.read_text('RECORD') or ''
        modules = {*listed.split(), *re.findall(r'^(\w+)/', record, re.M)}
        for module in modules & set(MM_MODULES):
            owners[module].add(distribution.metadata['Name'])
    return {name: sorted(found) for name, found in owners.items() if found}


def check_owners() -> None:
    """Raise if two distributions provide the same module.

    pip installs both without a word; the files of one overwrite the other's,
    and removing either breaks both.

    Raises:
        InputError: Names the module, the distributions and the solution.
    """
    for module, owners in module_owners().items():
        if len(owners) > 1:
            raise InputError(
                f'the module {module} must come from one distribution, but '
                f'{" and ".join(owners)} are installed. Their files overwrite '
                f'each other: run pip uninstall {" ".join(owners)}, then '
                'install one of them again'
            )


def check_modules(*modules: str) -> None:
    """Raise unless each module can be imported.

    Raises:
        InputError: Names the module, the error and the solution.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        # The original mmdet and mmseg raise AssertionError for mmcv's version.
        except Exception as error:
            pretrain = module in ('mmpretrain', 'torchvision')
            raise InputError(
                f'{module} cannot be imported ({type(error).__name__}: '
                f'{error}). Install packages that fit each other with: '
                f'{INSTALL_PRETRAIN if pretrain else INSTALL}'
            ) from error


def check_mmcv_ops() -> None:
    """Raise unless mmcv's compiled operators load, which detectors need.

    Raises:
        InputError: Names the error and the solution.
    """
    try:
        importlib.import_module('mmcv._ext')
    except ImportError as error:
        raise InputError(
            'mmcv is installed without working compiled operators, which '
            'detectors need: expected mmcv._ext to import, got '
            f'{type(error).__name__}: {error}. Rebuild it with: {REBUILD}'
        ) from error


def mmcv_lacks_cuda() -> bool:
    """True if there is a GPU that mmcv's operators do not support."""
    import torch
    from mmcv.ops import get_compiling_cuda_version

    return (
        torch.cuda.is_available()
        and get_compiling_cuda_version() == 'not available'
    )


def check_gpu_ops() -> None:
    """Raise if there is a GPU that mmcv's operators do not support.

    Raises:
        InputError: Names the solution.
    """
    if mmcv_lacks_cuda():
        raise InputError(
            'this machine has a GPU, but mmcv was built without CUDA, so '
            f'detectors run on the CPU only: set {CPU_ONLY}, or rebuild '
            f'mmcv with a CUDA toolkit: {REBUILD}'
        )


def check_or_exit(command: str) -> None:
    """Exit with one line if mmengine or mmcv cannot be imported.

    Commands call it before their other imports.

    Args:
        command: Name of the command, for the message.
    """
    try:
        check_owners()
        check_modules('mmengine', 'mmcv')
    except InputError as error:
        sys.exit(f'{command}: {error}')


def main() -> int:
    """Print a report; return 0 if everything needed can be imported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--pretrain',
        action='store_true',
        help='check the packages for classification instead of those for '
        'detection and segmentation',
    )
    pretrain = parser.parse_args().pretrain
    for module, owners in module_owners().items():
        print(f'{module:12s} from {", ".join(owners)}')
    needed = ('torchvision', 'mmpretrain') if pretrain else ('mmdet', 'mmseg')
    checks = [
        check_owners,
        lambda: check_modules('torch', 'mmengine', 'mmcv', *needed),
    ]
    if not pretrain:
        checks.append(check_mmcv_ops)
    problems = []
    for check in checks:
        try:
            check()
        except InputError as error:
            problems.append(str(error))
    for problem in problems:
        print(f'problem: {problem}', file=sys.stderr)
    if not problems and not pretrain and mmcv_lacks_cuda():
        print(
            'mmcv was built without CUDA: detectors run on the CPU, set '
            + CPU_ONLY
        )
    if not problems:
        print('all packages that training needs can be imported')
    return int(bool(problems))


if __name__ == '__main__':
    sys.exit(main())
