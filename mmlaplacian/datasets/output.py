"""Output folders, cleared of the files of an earlier call."""

from collections.abc import Iterable
from pathlib import Path

#: Marker file of folders whose numbered pictures may be removed.
MARK = '.written-by-mmlaplacian'


def claim_folders(
    out: Path, folders: Iterable[Path], ours: bool = False
) -> None:
    """Create folders and remove the numbered pictures of an earlier call.

    Args:
        out: Folder that gets the marker file.
        folders: Folders below ``out``.
        ours: Remove pictures even without the marker file.
            Default: False.

    Raises:
        FileExistsError: There are numbered pictures without the marker file;
            nothing is removed.
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
