"""Benchmark tools on small sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).resolve().parents[2] / 'tools/benchmarks'


@pytest.fixture
def benchmark_ops(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import benchmark_ops

    monkeypatch.setattr(benchmark_ops, 'ROUND_S', 0.001)
    return benchmark_ops


def test_kernel_row_and_table(benchmark_ops):
    cpu = torch.device('cpu')
    row = benchmark_ops.measure_kernel((2, 60, 7, 8), cpu, 1, False)
    assert {'ours', 'cdist', 'broadcast', 'dot'} <= set(row['forward_s'])
    assert set(row['forward_s']) == set(row['step_s'])
    inverse = benchmark_ops.measure_inverse(7, 2, cpu, 1)
    text = benchmark_ops.markdown(
        dict(machine='here', torch='2', kernel=[row], inverse=[inverse])
    )
    ratio = row['forward_s']['cdist'] / row['forward_s']['ours']
    assert f'| {ratio:.2f} |' in text and '2 of 7 x 7' in text


def test_a_wrong_result_is_not_timed(benchmark_ops, monkeypatch):
    monkeypatch.setattr(
        benchmark_ops, 'broadcast_form', lambda x, y: x @ y.mT + 1
    )
    with pytest.raises(AssertionError):
        benchmark_ops.measure_kernel(
            (1, 9, 4, 3), torch.device('cpu'), 1, False
        )


def test_peak_memory_sees_what_is_allocated(benchmark_ops):
    cpu = torch.device('cpu')
    peak = benchmark_ops.peak_memory(lambda: torch.ones(2**24), cpu)
    assert peak is None or 0.9 * 2**26 < peak < 1.5 * 2**26


def test_an_invalid_side(openmmlab):
    result = subprocess.run(
        [sys.executable, TOOLS / 'benchmark_backbone.py', '--sides', '224'],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "--sides: expected HEIGHTxWIDTH such as 800x1344, got '224'" in (
        result.stderr
    )


def test_backbone_tool(tmp_path, openmmlab):
    names = ('f.json', 'f.md', 'f.png')
    result = subprocess.run(
        [
            sys.executable,
            TOOLS / 'benchmark_backbone.py',
            *('--groups', 'tiny', '--sides', '32x48', '64x64'),
            *('--threads', '1', '--json', names[0]),
            *('--markdown', names[1], '--plot', names[2]),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    rows = json.loads((tmp_path / names[0]).read_text())['rows']
    # Three backbones, three kinds of pass, two sizes.
    assert len(rows) == 18
    assert all(row['seconds'] > 0 for row in rows)
    assert rows[0]['ratio'] == 1 and rows[0]['name'] == 'LaplacianFormer-tiny'
    assert '32 x 48' in (tmp_path / names[1]).read_text()
    assert (tmp_path / names[2]).read_bytes().startswith(b'\x89PNG')
    again = subprocess.run(
        [sys.executable, TOOLS / 'benchmark_backbone.py', '--read', names[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (tmp_path / names[1]).read_text() in again.stdout
