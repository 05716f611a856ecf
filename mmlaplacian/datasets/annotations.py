"""Read the categories of COCO annotation files."""

import json
import mmap
import re
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

from ..errors import InputError

#: Files up to this size in bytes are parsed whole; of larger ones only the
#: categories, since COCO's take seconds.
PARSED_WHOLE = 50_000_000
COCO_KEYS = ('images', 'categories', 'annotations')


def shorten(names: list, most: int = 10) -> str:
    """The first names, quoted, for a message."""
    shown = ', '.join(repr(name) for name in names[:most])
    return f'{shown}, ...' if len(names) > most else shown or 'none'


def read_categories(path: Path, annotated: bool = True) -> list[dict]:
    """Categories of a COCO file; a large one is not parsed whole.

    Args:
        path: Annotation file.
        annotated: Whether it must hold annotations, as test sets do not.
            Default: True.

    Returns:
        Its categories, each with at least ``id`` and ``name``.

    Raises:
        InputError: The file is not a COCO annotation file.
    """
    keys = COCO_KEYS if annotated else COCO_KEYS[:-1]
    if path.stat().st_size > PARSED_WHOLE:
        categories = _find_categories(path, keys)
        if categories is not None:
            return categories
    try:
        content = json.loads(path.read_bytes())
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f'{path}: expected COCO annotations, which are JSON, but it '
            f'does not parse: {error}'
        ) from error
    if not isinstance(content, dict):
        came = f'a JSON {type(content).__name__}'
    elif missing := [key for key in keys if key not in content]:
        came = f'no {" and no ".join(missing)} among {shorten([*content])}'
    elif not _are_categories(content['categories']):
        came = 'categories without id and name'
    else:
        return content['categories']
    raise InputError(
        f'{path}: expected COCO annotations, a JSON object with the lists '
        f'{", ".join(keys)}, got {came}; convert the file first'
    )


def _find_categories(path: Path, keys: tuple[str, ...]) -> list[dict] | None:
    """Categories of a file that looks whole; None where they are not found."""
    with (
        open(path, 'rb') as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        found = list(re.finditer(rb'"categories"\s*:\s*', text))
        keys = [f'"{key}"'.encode() for key in keys]
        whole = text[:64].lstrip()[:1] + text[-64:].rstrip()[-1:] == b'{}'
        if not (whole and found and all(text.find(key) >= 0 for key in keys)):
            return None
        tail = text[found[-1].end() : found[-1].end() + 2**20]
    try:
        categories, _ = JSONDecoder().raw_decode(tail.decode(errors='replace'))
    except JSONDecodeError:
        return None
    return categories if _are_categories(categories) else None


def _are_categories(value) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and {'id', 'name'} <= set(item)
        for item in value
    )
