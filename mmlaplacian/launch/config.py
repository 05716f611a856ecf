"""Reading of configs, with a check of the environment that they need."""

import importlib
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import init_default_scope

from ..check_env import check_mmcv_ops, check_modules
from ..errors import InputError


def load_config(
    path: str, options: dict | None = None, work_dir: str | None = None
) -> Config:
    """Read a text config.

    Configs without ``custom_imports`` work too, because the caller has
    imported this package.

    Args:
        path: Config file.
        options: Dotted keys and values that override it. Default: None.
        work_dir: Folder for logs and checkpoints. Default: None, the
            config's own, or ``work_dirs/`` and the config's name.

    Returns:
        The config.

    Raises:
        InputError: The file is missing, does not parse, or needs packages
            that are not installed.
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
            f'config: {path} has no model. Files in configs/_base_ are parts '
            'of configs; use a config from another folder'
        )
    own = config.get('work_dir') or str(Path('work_dirs', Path(path).stem))
    config.work_dir = work_dir or own
    scope = scope_of(config)
    check_modules(scope)
    if scope == 'mmdet':
        check_mmcv_ops()
    return config


def scope_of(config: Config) -> str:
    """The ``default_scope`` of a config; mmdet if it has none."""
    return config.get('default_scope') or 'mmdet'


def use_scope(config: Config) -> str:
    """Resolve bare names in the registries of the config's scope.

    Args:
        config: The config of a model of mmdet, mmseg or mmpretrain.

    Returns:
        The scope.
    """
    scope = scope_of(config)
    importlib.import_module(f'{scope}.registry')
    init_default_scope(scope)
    return scope
