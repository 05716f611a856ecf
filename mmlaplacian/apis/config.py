"""Read a config and check the environment that it asks for."""

import importlib
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import init_default_scope

from ..check_env import check_mmcv_ops, check_modules
from ..errors import InputError


def load_config(
    path: str, options: dict | None = None, work_dir: str | None = None
) -> Config:
    """Read a text config; the package itself is imported already.

    So a config that forgets ``custom_imports`` works too.

    Args:
        path: Config file.
        options: Dotted keys and values that override it.
        work_dir: Folder for logs and checkpoints. Default: None, the
            config's own, or ``work_dirs/`` and the config's name.

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
    own = config.get('work_dir') or str(Path('work_dirs', Path(path).stem))
    config.work_dir = work_dir or own
    scope = config.get('default_scope') or 'mmdet'
    check_modules(scope)
    if scope == 'mmdet':
        check_mmcv_ops()
    return config


def use_scope(config: Config) -> str:
    """Make the registries of mmdet, mmseg or mmpretrain answer to bare names.

    Args:
        config: Its ``default_scope`` decides; mmdet where it has none.

    Returns:
        The scope.
    """
    scope = config.get('default_scope') or 'mmdet'
    importlib.import_module(f'{scope}.registry')
    init_default_scope(scope)
    return scope
