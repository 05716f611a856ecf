"""Folders that are written, and emptied of what was written before."""

from collections.abc import Iterable
from pathlib import Path

#: Lies in a folder whose numbered pictures are ours to remove.
MARK = '.written-by-mmlaplacian'


def claim_folders(
    out: Path, folders: Iterable[Path], ours: bool = False
) -> None:
    """Make folders, and remove the numbered pictures of an earlier call.

    Args:
        out: Gets the mark.
        folders: Below ``out``.
        ours: The pictures are known to be ours, mark or not.
            Default: False.

    Raises:
        FileExistsError: There are numbered pictures, and no earlier call
            left its mark; nothing is removed.
    """
    folders = list(folders)
    stale = [p for f in folders for p in f.glob('[0-9]' * 6 + '.png')]
    if stale and not ours and not (out / MARK).exists():
        raise FileExistsError(
            f'{out} holds pictures that this command did not write, such as '
            f'{stale[0].relative_to(out)}: choose another folder with --out, '
            'or remove them'
        )
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    for path in stale:
        path.unlink()
