"""Say whether the OpenMMLab packages of this environment can work.

``python -m mmlaplacian.check_env`` prints what is installed and exits with 1
where something is missing or broken; with ``--pretrain`` it looks at the
environment for ImageNet.
"""

import argparse
import importlib
import re
import sys
from importlib.metadata import distributions

from .errors import InputError

#: Modules that several distributions provide, under the same name.
MM_MODULES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain')
INSTALL = (
    'pip install --no-build-isolation "mmlaplacian[onedl]" (with '
    '--force-reinstall where pip says that they are there)'
)
#: mmpretrain needs torchvision; detection and segmentation do not.
INSTALL_PRETRAIN = (
    'make test-pretrain, which makes the environment .venv-pretrain (or see '
    'configs/imagenet/README.md)'
)
CPU_ONLY = 'CUDA_VISIBLE_DEVICES= (to nothing)'
REBUILD = (
    'pip install --no-build-isolation --no-deps --force-reinstall '
    '--no-cache-dir onedl-mmcv (PyTorch and a C++ compiler must be there '
    'before)'
)


def module_owners() -> dict[str, list[str]]:
    """Distributions that own each installed module of MM_MODULES."""
    owners: dict[str, set[str]] = {module: set() for module in MM_MODULES}
    for distribution in distributions():
        # Not every distribution says its modules in top_level.txt.
        listed = distribution.read_text('top_level.txt') or ''
        record = distribution.read_text('RECORD') or ''
        modules = {*listed.split(), *re.findall(r'^(\w+)/', record, re.M)}
        for module in modules & set(MM_MODULES):
            owners[module].add(distribution.metadata['Name'])
    return {name: sorted(found) for name, found in owners.items() if found}


def check_owners() -> None:
    """Raise where two distributions own one module.

    pip installs both without a word; the files of one overwrite the other's,
    and removing either breaks both.

    Raises:
        InputError: Names the module, the distributions and the way out.
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
        InputError: Names the module, the error and the way out.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        # The original mmdet and mmseg assert the version of mmcv.
        except Exception as error:
            pretrain = module in ('mmpretrain', 'torchvision')
            raise InputError(
                f'{module} cannot be imported ({type(error).__name__}: '
                f'{error}). Install packages that fit each other with: '
                f'{INSTALL_PRETRAIN if pretrain else INSTALL}'
            ) from error


def check_mmcv_ops() -> None:
    """Raise unless mmcv's compiled operators load; detectors need them.

    Raises:
        InputError: Names the error and the way out.
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
    """Whether mmcv's operators cannot follow a model onto a GPU here."""
    import torch
    from mmcv.ops import get_compiling_cuda_version

    return (
        torch.cuda.is_available()
        and get_compiling_cuda_version() == 'not available'
    )


def check_gpu_ops() -> None:
    """Raise where a detector would go onto a GPU that mmcv cannot use.

    Raises:
        InputError: Names the way out.
    """
    if mmcv_lacks_cuda():
        raise InputError(
            'this machine has a GPU, but mmcv was built without CUDA, so '
            f'detectors run on the CPU only: set {CPU_ONLY}, or rebuild '
            f'mmcv with a CUDA toolkit: {REBUILD}'
        )


def check_or_exit(command: str) -> None:
    """For a command, before its imports: one line where mmengine is broken.

    Args:
        command: Name that the message starts with.
    """
    try:
        check_owners()
        check_modules('mmengine', 'mmcv')
    except InputError as error:
        sys.exit(f'{command}: {error}')


def main() -> int:
    """Print a report; 0 where what is asked for can run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--pretrain',
        action='store_true',
        help='look for what classification needs: default, for detection and '
        'segmentation',
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
    troubles = []
    for check in checks:
        try:
            check()
        except InputError as error:
            troubles.append(str(error))
    for trouble in troubles:
        print(f'problem: {trouble}', file=sys.stderr)
    if not troubles and not pretrain and mmcv_lacks_cuda():
        print('mmcv has no CUDA: detectors run on the CPU, set ' + CPU_ONLY)
    if not troubles:
        print('everything that training needs can be imported')
    return int(bool(troubles))


if __name__ == '__main__':
    sys.exit(main())
