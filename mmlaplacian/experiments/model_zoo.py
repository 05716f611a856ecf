"""The model zoo page, from the table of experiments and the metafiles."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from .table import Experiment

HEAD = """\
# Model zoo

`{command}` writes this page from
[configs/experiments.yml](../configs/experiments.yml) and the metafiles in
[configs](../configs): change those, not this page.

All figures are in percent. Published figures name their source in brackets,
where "paper" is [arXiv 2604.20368](https://arxiv.org/abs/2604.20368). Our
figures were measured by this project, under the conditions of the last column.
Parameters are those of the whole model. No weights are published.

`python tools/reproduce.py run EXPERIMENT` trains and tests a row in one
process. For N GPUs, add `--processes N`; if the total batch size differs from
the recipe's, add `--auto-scale-lr`. ImageNet rows and the digit classifier run
in the [second environment](../configs/imagenet/README.md). COCO and ADE20K
rows of LaplacianFormer need [weights](weights.md) first."""
ABLATIONS = """\
Bandwidths are in units of q and k scaled by D^(-1/4)
([cuda_ops/README.md](../cuda_ops/README.md)). We assume that the paper's
lambda has the same meaning."""


def model_zoo(table: dict[str, Experiment], index: Path, command: str) -> str:
    """The page in Markdown, for a folder beside ``configs``.

    Args:
        table: Experiments by id.
        index: ``model-index.yml``, which lists the metafiles.
        command: Command that writes the page.
    """
    rows = {
        f'configs/{row.config}': row
        for row in table.values()
        if not row.overrides
    }
    parts = [HEAD.format(command=command)]
    for name in yaml.safe_load(index.read_text())['Import']:
        metafile = yaml.safe_load((index.parent / name).read_text())
        (collection,) = metafile['Collections']
        parts.append(f'## {collection["Name"]}')
        models = [
            (model, rows[model['Config']]) for model in metafile['Models']
        ]
        parts += _models(models)
    parts += ['## Ablations', ABLATIONS, '\n'.join(_ablations(table))]
    return '\n\n'.join(parts) + '\n'


def measured(model: dict) -> dict[str, float]:
    """Figures of a metafile's model in percent, by the metric's name."""
    figures = {}
    for result in model.get('Results', ()):
        figures.update(result['Metrics'])
    return figures


def _models(models: list[tuple[dict, Experiment]]) -> Iterator[str]:
    """A table of the models with figures, and a line for the others."""
    shown = [pair for pair in models if pair[1].published or measured(pair[0])]
    if shown:
        yield '\n'.join(_figures(shown))
    others = ', '.join(
        f'[{row.id}](../{model["Config"]}) '
        f'({model["Metadata"]["Parameters"] / 1e6:.2f} M)'
        for model, row in models
        if (model, row) not in shown
    )
    if others:
        yield f'Configs without a figure, with their parameters: {others}.'


def _figures(models: list[tuple[dict, Experiment]]) -> Iterator[str]:
    yield '| experiment | parameters | published | ours | trained |'
    yield '|---|---|---|---|---|'
    for model, row in models:
        ours = measured(model).items()
        cells = (
            f'[{row.id}](../{model["Config"]})',
            f'{model["Metadata"]["Parameters"] / 1e6:.2f} M',
            row.published_text() or '-',
            ', '.join(f'{name} {value:.1f}' for name, value in ours)
            or 'not run',
            model['Metadata'].get('Trained', '-'),
        )
        yield f'| {" | ".join(cells)} |'


def _ablations(table: dict[str, Experiment]) -> Iterator[str]:
    yield '| group | experiment | shows | published | config | overrides |'
    yield '|---|---|---|---|---|---|'
    for row in table.values():
        if row.overrides:
            cells = (
                row.group,
                row.id,
                row.shows,
                row.published_text() or '-',
                f'[{Path(row.config).stem}](../configs/{row.config})',
                ' '.join(f'`{k}={v}`' for k, v in row.overrides.items()),
            )
            yield f'| {" | ".join(cells)} |'
