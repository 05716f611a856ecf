"""Turn known failures of a running loop into one message."""

import re
from collections.abc import Callable
from pathlib import Path

from mmengine.config import Config

from ..datasets import IMAGE_SUFFIXES
from ..errors import InputError
from .data import leaves, prefix_folders

SAVED = 'Where this was training: finished epochs are saved, --resume goes on'


def run_explained(loop: Callable[[], object], config: Config) -> None:
    """Run a loop; a failure that the user's input caused says so.

    Args:
        loop: ``Runner.train`` or ``Runner.test``.
        config: Of the runner.

    Raises:
        InputError: See :func:`explain_failure`. Other failures pass.
    """
    try:
        loop()
    except Exception as error:
        explained = explain_failure(error, config)
        if explained is None:
            raise
        raise explained from error


def explain_failure(error: Exception, config: Config) -> InputError | None:
    """A clear message for a failure that the user's input caused.

    Args:
        error: What a training or test loop raised, also from a worker.
        config: The config, to look for the image that OpenCV does not name.

    Returns:
        The message to raise instead; None for any other failure.
    """
    text = str(error)
    found = re.search(r'failed to load image: (.+)', text)
    image = found[1].strip() if found else ''
    found = re.search(r"\[Errno \d+\] [^\[]*: '([^']+)'", text)
    if found and found[1].lower().endswith(tuple(IMAGE_SUFFIXES)):
        image = found[1]
    if 'imdecode' in text and 'empty' in text:
        image = _empty_file(config)
    if image:
        return InputError(
            f'the image {image} is missing or cannot be read or decoded; '
            f'restore it, or take it out of the dataset. {SAVED}'
        )
    if 'Expected more than 1 value per channel when training' in text:
        return InputError(
            'batch normalisation after pooling to 1 x 1 needs more than one '
            'image in a step, and the batch size of this process is 1: set '
            'train_dataloader.batch_size=2 or more with --cfg-options, or '
            'train on several GPUs with SyncBN'
        )
    found = re.search(r'Target (-?\d+) is out of bounds', text)
    if found:
        return InputError(
            f'a label map holds the label {found[1]}, which is outside the '
            'classes of the head: correct the map, or num_classes and the '
            f'classes of the dataset. {SAVED}'
        )
    return None


def _empty_file(config: Config) -> Path | str:
    """The first file of the datasets' folders that holds nothing."""
    for split in ('train', 'val', 'test'):
        loader = config.get(f'{split}_dataloader') or dict(dataset={})
        for dataset in leaves(loader['dataset']):
            for folder in prefix_folders(dataset).values():
                for path in sorted(folder.rglob('*.*')):
                    if path.is_file() and path.stat().st_size == 0:
                        return path
    return 'with no content (its name is not known)'
