"""The model zoo page, from the table of experiments and the metafiles."""

from collections.abc import Iterator
from pathlib import Path

import mmengine

from .table import Experiment, published_text

HEAD = """\
# Model zoo

Written by `{command}` from
[configs/experiments.yml](../configs/experiments.yml) and the metafiles in
[configs](../configs): change those, not this page.

Figures are in percent. Published: by the source in brackets, where "paper" is
[arXiv 2604.20368](https://arxiv.org/abs/2604.20368); -: no figure known to us.
Ours: measured by this project, under the conditions of the last column; "not
run": not by this project. Parameters are those of the whole model. No weights
are published.

`python tools/reproduce.py run EXPERIMENT` trains and tests a row, in one
process: add `--processes N` for N GPUs, and with another total batch size than
the recipe's `--auto-scale-lr`. ImageNet rows and the digit classifier run in
the [second environment](../configs/imagenet/README.md); COCO and ADE20K rows
of LaplacianFormer need [weights](weights.md) first."""
#: What the paper does not say of its ablations.
ABLATIONS = """\
Bandwidths are in units of q and k scaled by D^(-1/4)
([cuda_ops/README.md](../cuda_ops/README.md)); that the paper's lambda means
the same is our assumption."""


def model_zoo(table: dict[str, Experiment], index: Path, command: str) -> str:
    """The page in Markdown, for a folder beside ``configs``.

    Args:
        table: Experiments by id.
        index: ``model-index.yml``, which lists the metafiles.
        command: What writes the page.
    """
    parts = [HEAD.format(command=command)]
    for name in mmengine.load(index)['Import']:
        metafile = mmengine.load(index.parent / name)
        for collection in metafile['Collections']:
            models = [
                model
                for model in metafile['Models']
                if model['In Collection'] == collection['Name']
            ]
            parts.append(f'## {collection["Name"]}')
            parts.append('\n'.join(_models(models, table)))
    parts += ['## Ablations', ABLATIONS]
    parts.append('\n'.join(_ablations(table)))
    return '\n\n'.join(parts) + '\n'


def measured(model: dict) -> dict[str, float]:
    """Figures of a metafile's model in percent, by the metric's name."""
    figures = {}
    for result in model.get('Results', ()):
        figures.update(result['Metrics'])
    return figures


def _models(models: list[dict], table: dict) -> Iterator[str]:
    rows = {
        f'configs/{row.config}': row
        for row in table.values()
        if not row.overrides and not row.same_run_as
    }
    experiments = [rows.get(model['Config']) for model in models]
    names = [metric.name for e in experiments if e for metric in e.metrics]
    names += [name for model in models for name in measured(model)]
    columns = []
    for name in dict.fromkeys(names):
        if any(row and name in row.published for row in experiments):
            columns.append((name, 'published'))
        columns.append((name, 'ours'))
    head = ['model', 'experiment', 'parameters', *map(', '.join, columns)]
    head.append('trained')
    yield f'| {" | ".join(head)} |'
    yield '|---' * len(head) + '|'
    for model, row in zip(models, experiments, strict=True):
        count = model['Metadata'].get('Parameters')
        cells = [
            f'[{model["Name"]}](../{model["Config"]})',
            row.id if row else '-',
            f'{count / 1e6:.2f} M' if count else '-',
            *(_figure(model, row, *column) for column in columns),
            model['Metadata'].get('Trained', '-'),
        ]
        yield f'| {" | ".join(cells)} |'


def _figure(model: dict, row: Experiment | None, name: str, whose: str) -> str:
    if whose == 'published':
        return published_text(row, name) if row else '-'
    ours = measured(model).get(name)
    if ours is not None:
        return f'{ours:.1f}'
    asked = row is None or name in {metric.name for metric in row.metrics}
    return 'not run' if asked else '-'


def _ablations(table: dict) -> Iterator[str]:
    yield '| group | experiment | shows | published | config | overrides |'
    yield '|---|---|---|---|---|---|'
    for row in table.values():
        if not row.overrides and not row.same_run_as:
            continue
        overrides = ' '.join(f'`{k}={v}`' for k, v in row.overrides.items())
        if row.same_run_as:
            overrides = f'the run of {row.same_run_as}'
        cells = (
            row.group,
            row.id,
            row.shows,
            ', '.join(published_text(row, m.name) for m in row.metrics),
            f'[{Path(row.config).stem}](../configs/{row.config})',
            overrides,
        )
        yield f'| {" | ".join(cells)} |'
