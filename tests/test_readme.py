"""Statements of the README about the code."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from mmlaplacian.experiments.model_zoo import measured
from mmlaplacian.experiments.table import load_experiments
from mmlaplacian.models import ARCHS, LaplacianFormer

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text()


def rows():
    """Cells of the size table, 'same' filled in from the row above."""
    last = None
    for size in ARCHS:
        line = re.search(rf'^\| {size} \|(.+)\|$', README, re.MULTILINE)[1]
        cells = [cell.strip() for cell in line.split('|')]
        last = cells[0] if cells[0] != 'same' else last
        yield size, [last, *cells[1:]]


@pytest.mark.parametrize('size, cells', list(rows()), ids=list(ARCHS))
def test_size_table(size, cells):
    numbers = [tuple(map(int, cell.split(', '))) for cell in cells[:2]]
    assert numbers == [ARCHS[size]['embed_dims'], ARCHS[size]['depths']]
    with torch.device('meta'):
        model = LaplacianFormer(size)
    count = sum(p.numel() for p in model.parameters())
    count += 1000 * (model.out_channels[-1] + 1)
    assert cells[2].startswith(f'{count / 1e6:.2f} M')


def test_trained_models():
    """Figures and times agree with the metafiles and the experiments."""
    rows = load_experiments(ROOT / 'configs/experiments.yml').values()
    times = {row.config: row.time for row in rows if not row.overrides}
    models = [
        model
        for path in ROOT.glob('configs/*/metafile.yml')
        for model in yaml.safe_load(path.read_text())['Models']
        if measured(model)
    ]
    assert models
    for model in models:
        config = model['Config'].removeprefix('configs/')
        line = re.search(rf'^\| `{config}.+\|$', README, re.MULTILINE)[0]
        for name, value in measured(model).items():
            assert f'{name} {value / 100:.3f}' in line
        assert times[config] in ('not measured', line.split(' | ')[2])


def test_linked_files_exist():
    for target in re.findall(r'\]\((?!https?://)([^)]+)\)', README):
        assert (ROOT / target).exists(), target
