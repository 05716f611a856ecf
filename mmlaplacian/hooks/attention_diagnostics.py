"""What the Laplacian attention of a model in training is like inside."""

import math

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from torch import Tensor, nn

from ..models import LaplacianAttention, LaplacianFormer


class AttentionDiagnosticsHook(Hook):
    """Record the health of every stage's attention while a model trains.

    Every ``interval`` training iterations one record goes to each visual
    backend of the runner, with the number of iterations done as its step
    and, for each stage i of the backbone, counted from 0:

    - ``attention/stage{i}/residual``: ``|I - P X|_F / sqrt(M)`` of the
      landmark matrix P = W + ridge I and the solver's X; the **worst** head
      of the stage's layers.
    - ``attention/stage{i}/effective_rank``: exp of the entropy of W's
      eigenvalues, divided by their sum (Roy and Vetterli, EUSIPCO 2007), 1 to
      M; **mean** over heads and layers.
    - ``attention/stage{i}/landmarks``: M.
    - ``attention/stage{i}/off_diagonal``: mean of W's entries off its
      diagonal; **mean** over heads and layers.
    - ``attention/stage{i}/dead_share``: share of the keys whose whitening
      variance is below eps, so that whitening holds them down instead of
      bringing them to unit variance; **mean** over heads and layers.

    What a layer has no use for is left out: a stage on the exact kernel has
    ``dead_share`` alone, attentions without a kernel have nothing. NaN and
    Inf in a layer's input, result or matrices are a warning that names the
    first such layer, and its figures are then NaN.

    All figures are those of the first image of the batch in the main process
    (NaN and Inf in input and result: of the whole batch), from the weights
    and the precision of the very forward pass; of several passes in one
    iteration the first counts. Values and gradients of the training stay the
    same to the bit. Layers inside a compiled graph cannot be seen: under
    ``torch.compile`` nothing is recorded, and one warning says so.

    (Records go past the message hub, whose values LoggerHook would print in
    each of its lines until there are new ones.)

    Args:
        interval: Iterations from one record to the next, >= 1. Default: 50.

    Raises:
        ValueError: ``interval`` is not a positive integer.
    """

    def __init__(self, interval: int = 50):
        if type(interval) is not int or interval < 1:
            raise ValueError(
                'AttentionDiagnosticsHook: interval must be a positive '
                f'integer, got {interval!r}'
            )
        self.interval = interval
        self._stages: dict[str, list[LaplacianAttention]] = {}
        self._names: dict[LaplacianAttention, str] = {}
        self._found: dict[LaplacianAttention, dict[str, Tensor]] = {}
        self._handles = []
        self._said_nothing = False

    def before_train(self, runner) -> None:
        """Find the layers."""
        self._stages = layers_by_stage(runner.model)
        self._names = {
            module: name.removeprefix('module.')
            for name, module in runner.model.named_modules()
            if isinstance(module, LaplacianAttention)
        }
        if not self._stages:
            runner.logger.warning(
                'AttentionDiagnosticsHook: the model has no LaplacianFormer, '
                'nothing will be recorded'
            )

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        """Look into the layers for this iteration, if it is one to record."""
        if is_main_process() and self.every_n_train_iters(
            runner, self.interval
        ):
            self._found.clear()
            self._handles = [
                layer.register_forward_hook(self._measure)
                for layers in self._stages.values()
                for layer in layers
            ]

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        """Write the record of this iteration."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._say_not_finite(runner)
        record = {}
        for stage, layers in self._stages.items():
            found = [
                layer_figures(self._found[layer], layer.solver_cfg['ridge'])
                for layer in layers
                if layer in self._found
            ]
            for name, value in stage_figures(found).items():
                record[f'attention/{stage}/{name}'] = value
        if record:
            runner.visualizer.add_scalars(record, step=runner.iter + 1)
        elif not self._said_nothing:
            self._say_nothing(runner)
        self._found.clear()

    # After the layer, not before: where PyTorch has the bug #65766, the first
    # use of a weight under autocast decides whether its copy has a gradient.
    @torch.no_grad()
    def _measure(self, layer, inputs, output) -> None:
        """Keep what is small; nothing here waits for the device."""
        # Checkpointing repeats the pass.
        if torch.compiler.is_compiling() or layer in self._found:
            return
        x, hw = inputs
        found = layer.intermediates(x[:1], hw)
        variance, eps = found.pop('variance', None), found.pop('eps', None)
        if variance is not None:
            found['variance'] = variance.mean(-1)
            found['dead_share'] = (variance < eps).double().mean(-1)
        found['input'] = x.isfinite().all()
        found['result'] = output.isfinite().all()
        self._found[layer] = found

    def _say_nothing(self, runner) -> None:
        self._said_nothing = True
        if self._found:
            reason = 'this kernel has neither landmarks nor whitening'
        else:
            reason = (
                'no attention layer was seen. Layers inside a graph of '
                'torch.compile cannot be; train without compile to record'
            )
        runner.logger.warning(
            f'AttentionDiagnosticsHook: iteration {runner.iter + 1}: nothing '
            f'to record, {reason}'
        )

    def _say_not_finite(self, runner) -> None:
        broken = {
            self._names[layer]: parts
            for layer, found in self._found.items()
            if (parts := not_finite(found))
        }
        if broken:
            name, parts = next(iter(broken.items()))
            runner.logger.warning(
                f'AttentionDiagnosticsHook: iteration {runner.iter + 1}: NaN '
                f'or Inf in {name} ({", ".join(parts)}), the first of '
                f'{len(broken)} such layers among {len(self._found)}'
            )


def layers_by_stage(model: nn.Module) -> dict[str, list[LaplacianAttention]]:
    """The attention layers of every LaplacianFormer in a model.

    Returns:
        By ``stage0`` and so on; where a model has several backbones, their
        names in the model stand before it.
    """
    backbones = {
        name.removeprefix('module.'): module
        for name, module in model.named_modules()
        if isinstance(module, LaplacianFormer)
    }
    return {
        f'{name}/stage{i}' if len(backbones) > 1 else f'stage{i}': [
            module
            for module in stage.modules()
            if isinstance(module, LaplacianAttention)
        ]
        for name, backbone in backbones.items()
        for i, stage in enumerate(backbone.stages)
    }


def layer_figures(found: dict[str, Tensor], ridge: float) -> dict[str, Tensor]:
    """Figures of one layer from what was kept of it, float64 on the CPU.

    Args:
        found: ``w`` and ``inverse``, (B, h, M, M), ``variance`` and
            ``dead_share``, (B, h); each may be missing.
        ridge: What the solver adds to the diagonal of ``w``.

    Returns:
        (B, h) for each figure that exists, and ``landmarks``, a number.
    """
    figures = {}
    if 'w' in found:
        w, inverse = (found[name].cpu().double() for name in ('w', 'inverse'))
        figures['residual'] = solver_residual(w, inverse, ridge)
        figures['effective_rank'] = effective_rank(w)
        figures['landmarks'] = w.shape[-1]
        if w.shape[-1] > 1:
            figures['off_diagonal'] = mean_off_diagonal(w)
    if 'dead_share' in found:
        share, variance = found['dead_share'].cpu(), found['variance'].cpu()
        # A comparison with NaN is false, which would look alive.
        figures['dead_share'] = share.where(variance.isfinite(), math.nan)
    return figures


def stage_figures(layers: list[dict]) -> dict[str, float]:
    """One number for each figure of a stage: the worst residual, or means."""
    figures = {}
    for name in layers[0] if layers else ():
        values = [layer[name] for layer in layers]
        if name == 'landmarks':
            figures[name] = values[0]
        elif name == 'residual':
            figures[name] = torch.stack(values).max().item()
        else:
            figures[name] = torch.stack(values).mean().item()
    return figures


def not_finite(found: dict[str, Tensor]) -> list[str]:
    """Which parts of a layer hold NaN or Inf."""
    parts = [name for name in ('input', 'result') if not found[name].item()]
    names = dict(
        w='landmark matrix', inverse='its inverse', variance='variances'
    )
    return parts + [
        said
        for name, said in names.items()
        if name in found and not found[name].isfinite().all().item()
    ]


def solver_residual(w: Tensor, inverse: Tensor, ridge: float) -> Tensor:
    """``|I - P X|_F / sqrt(M)`` for P = W + ridge I; (..., M, M) to (...).

    1 for X = 0. It is at most the spectral norm.
    """
    size = w.shape[-1]
    identity = torch.eye(size, dtype=w.dtype, device=w.device)
    residual = identity - (w + ridge * identity) @ inverse
    return torch.linalg.matrix_norm(residual) / math.sqrt(size)


def effective_rank(w: Tensor) -> Tensor:
    """exp of the entropy of the normalised eigenvalues; (..., M, M) to (...).

    Of symmetric positive semi-definite matrices, whose eigenvalues are the
    singular values of the definition: O. Roy and M. Vetterli, "The effective
    rank: a measure of effective dimensionality", EUSIPCO 2007.
    """
    if not w.isfinite().all():
        return w.new_full(w.shape[:-2], math.nan)
    values = torch.linalg.eigvalsh(w).clamp(min=0)
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


def mean_off_diagonal(w: Tensor) -> Tensor:
    """Mean of the entries off the diagonal; (..., M, M) to (...), M > 1."""
    size = w.shape[-1]
    trace = w.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (w.sum((-2, -1)) - trace) / (size * (size - 1))
