"""tools/benchmarks/benchmark_diagnostics.py on small sizes."""

import subprocess
import sys
from pathlib import Path

TOOL = (
    Path(__file__).resolve().parents[2]
    / 'tools/benchmarks/benchmark_diagnostics.py'
)


def test_a_row_for_each_size(tmp_path):
    result = subprocess.run(
        [sys.executable, TOOL, '--arch', 'nano', '--side', '64']
        + ['--pairs', '2'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    row = result.stdout.splitlines()[-1].strip('| ').split(' | ')
    assert row[:3] == ['nano', '64 x 64', '2']
    assert float(row[3]) > 0 and float(row[4]) > 0 and row[5].endswith('%')
    assert not list(tmp_path.iterdir())
