"""Which sources the compiled CPU kernels were built from.

``setup.py`` runs this file without importing the package, which needs torch.
"""

import hashlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / 'csrc'

#: Written into the library, in front of :func:`sources_hash`.
MARK = b'mmlaplacian-sources:'


def cpu_sources() -> list[Path]:
    """The files that are compiled."""
    return [FOLDER / 'module.cpp', *sorted((FOLDER / 'cpu').glob('*.cpp'))]


def sources_hash() -> str:
    """Of the compiled files and their headers, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    headers = sorted((FOLDER / 'cpu').glob('*.h'))
    for path in [*cpu_sources(), *headers]:
        digest.update(path.name.encode() + b'\0' + path.read_bytes())
    return digest.hexdigest()[:16]
