"""Sources of the compiled CPU library, and hashes of their code.

``setup.py`` runs this file without importing the package, which needs torch.
"""

import hashlib
import re
from pathlib import Path

#: Include folder of the C++ sources.
PACKAGE = Path(__file__).resolve().parents[1]

#: Precedes :func:`code_hashes` in the library.
MARK = b'mmlaplacian-sources:'

# Literals (the group, which is kept), comments and white space.
_TOKEN = re.compile(
    r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|//[^\n]*|/\*.*?\*/|\s+""",
    re.DOTALL,
)


def cpu_sources(package: Path = PACKAGE) -> list[Path]:
    """Files that are compiled."""
    return sorted([*package.glob('common/*.cpp'), *package.glob('*/cpu.cpp')])


def cpu_headers(package: Path = PACKAGE) -> list[Path]:
    """Headers that they include."""
    return sorted(package.glob('*/*.h'))


def code_hashes(package: Path = PACKAGE) -> str:
    """Return ``path=hash`` of each source and header, separated by commas.

    A hash has 16 hexadecimal digits. It ignores comments and white space.
    """
    hashes = []
    for path in [*cpu_sources(package), *cpu_headers(package)]:
        text = path.read_text(encoding='utf-8')
        code = _TOKEN.sub(lambda match: match[1] or '', text)
        digest = hashlib.sha256(code.encode()).hexdigest()[:16]
        hashes.append(f'{path.relative_to(package).as_posix()}={digest}')
    return ','.join(hashes)


def changed_files(built: str, present: str) -> list[str]:
    """Paths whose code differs between two results of :func:`code_hashes`."""
    difference = set(built.split(',')) ^ set(present.split(','))
    return sorted({entry.partition('=')[0] for entry in difference})
