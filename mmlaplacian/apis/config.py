"""Read a config and check the environment that it asks for."""

from pathlib import Path

from mmengine.config import Config

from ..check_env import (
    CPU_ONLY,
    REBUILD,
    check_mmcv_ops,
    check_modules,
    mmcv_lacks_cuda,
)
from ..errors import InputError


def load_config(path: str, options: dict | None = None) -> Config:
    """Read a text config; the package itself is imported already.

    So a config that forgets ``custom_imports`` works too.

    Args:
        path: Config file.
        options: Dotted keys and values that override it.

    Returns:
        The config.

    Raises:
        InputError: The file is missing, does not parse, or asks for packages
            that are not there.
    """
    if not Path(path).is_file():
        raise InputError(
            f'config: expected a file, found none at {Path(path).absolute()}; '
            'the configs of this project are in configs/, and in '
            'mmlaplacian/.mim/configs of an installed package'
        )
    try:
        config = Config.fromfile(path)
    except Exception as error:
        raise InputError(f'config: {path} does not parse: {error}') from error
    if options:
        try:
            config.merge_from_dict(options)
        except (KeyError, TypeError, IndexError) as error:
            raise InputError(
                f'--cfg-options: {options} does not fit {path}: {error}'
            ) from error
    if 'model' not in config:
        raise InputError(
            f'config: {path} has no model; a file of configs/_base_ is a part '
            'of a config, take one of the folders beside it'
        )
    scope = config.get('default_scope') or 'mmdet'
    check_modules(scope)
    if scope == 'mmdet':
        check_mmcv_ops()
        if mmcv_lacks_cuda():
            raise InputError(
                'this machine has a GPU, but mmcv was built without CUDA, so '
                f'detectors run on the CPU only: set {CPU_ONLY}, or rebuild '
                f'mmcv with a CUDA toolkit: {REBUILD}'
            )
    return config
