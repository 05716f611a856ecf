"""Diagnostics of the Laplacian attention during training."""

import math

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from torch import Tensor, nn

from ..models import LaplacianFormer
from ..models.attention import Attention


class AttentionDiagnosticsHook(Hook):
    """Record numerical diagnostics of every stage's attention in training.

    Every ``interval`` training iterations, the hook sends one record to each
    visual backend of the runner. The record's step is the number of completed
    iterations. It holds, for each stage i of the backbone, counted from 0:

    - ``attention/stage{i}/residual``: ``|I - P X|_F / sqrt(M)`` of the
      landmark matrix P = W + ridge I and the solver's X; **maximum** over the
      heads and layers of the stage.
    - ``attention/stage{i}/effective_rank``: exp of the entropy of W's
      eigenvalues, divided by their sum (Roy and Vetterli, EUSIPCO 2007), 1 to
      M; **mean** over heads and layers.
    - ``attention/stage{i}/landmarks``: M.
    - ``attention/stage{i}/off_diagonal``: mean of W's entries off its
      diagonal; **mean** over heads and layers.
    - ``attention/stage{i}/dead_share``: share of the keys whose whitening
      variance is below eps, so that whitening suppresses them instead of
      scaling them to unit variance; **mean** over heads and layers.

    Figures that a layer does not have are omitted: a stage with the exact
    kernel has ``dead_share`` only, and mechanisms without a kernel have no
    figures. NaN or Inf in a layer's input, result or matrices causes a
    warning that names the first such layer, and its figures become NaN.

    The figures describe the first image of the batch in the main process (the
    check of input and result covers the whole batch). They use the weights
    and the precision of the forward pass itself; if an iteration has several
    passes, the first one counts. Values and gradients of the training do not
    change by a bit. Under ``torch.compile`` the layers are not visible, so
    the hook records nothing and warns once.

    Records bypass the message hub because LoggerHook would print old values
    in each of its lines.

    Args:
        interval: Iterations between two records, >= 1. Default: 50.

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
        self._stages: dict[str, list[Attention]] = {}
        self._names: dict[Attention, str] = {}
        self._measured: dict[Attention, dict[str, Tensor]] = {}
        self._handles = []
        self._warned_no_record = False

    def before_train(self, runner) -> None:
        """Find the layers."""
        self._stages = layers_by_stage(runner.model)
        self._names = {
            module: name.removeprefix('module.')
            for name, module in runner.model.named_modules()
            if isinstance(module, Attention)
        }
        if not self._stages:
            runner.logger.warning(
                'AttentionDiagnosticsHook: the model has no LaplacianFormer, '
                'so nothing will be recorded'
            )

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        """Attach to the layers if this iteration is to be recorded."""
        if is_main_process() and self.every_n_train_iters(
            runner, self.interval
        ):
            self._measured.clear()
            self._handles = [
                layer.register_forward_hook(self._measure)
                for layers in self._stages.values()
                for layer in layers
            ]

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        """Write the record of this iteration, if there is one."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._warn_not_finite(runner)
        record = {}
        for stage, layers in self._stages.items():
            figures = [
                layer_figures(self._measured[layer], layer)
                for layer in layers
                if layer in self._measured
            ]
            for name, value in stage_figures(figures).items():
                record[f'attention/{stage}/{name}'] = value
        if record:
            runner.visualizer.add_scalars(record, step=runner.iter + 1)
        elif not self._warned_no_record:
            self._warn_no_record(runner)
        self._measured.clear()

    # The hook runs after the layer: with PyTorch's bug #65766, the first use
    # of a weight under autocast decides whether its copy has a gradient.
    @torch.no_grad()
    def _measure(self, layer, inputs, output) -> None:
        """Keep small tensors only, without waiting for the device."""
        # Activation checkpointing repeats the forward pass.
        if torch.compiler.is_compiling() or layer in self._measured:
            return
        x, hw = inputs
        measured = layer.statistics(x[:1], hw)
        variance = measured.pop('variance', None)
        eps = measured.pop('eps', None)
        if variance is not None:
            measured['variance'] = variance.mean(-1)
            measured['dead_share'] = (variance < eps).double().mean(-1)
        measured['input'] = x.isfinite().all()
        measured['result'] = output.isfinite().all()
        self._measured[layer] = measured

    def _warn_no_record(self, runner) -> None:
        self._warned_no_record = True
        if self._measured:
            reason = 'this attention has neither landmarks nor whitening'
        else:
            reason = (
                'no attention layer was seen. Layers inside a graph of '
                'torch.compile are not visible; train without compile to '
                'record'
            )
        runner.logger.warning(
            f'AttentionDiagnosticsHook: iteration {runner.iter + 1}: nothing '
            f'to record, {reason}'
        )

    def _warn_not_finite(self, runner) -> None:
        broken = {
            self._names[layer]: parts
            for layer, measured in self._measured.items()
            if (parts := not_finite_parts(measured))
        }
        if broken:
            name, parts = next(iter(broken.items()))
            runner.logger.warning(
                f'AttentionDiagnosticsHook: iteration {runner.iter + 1}: NaN '
                f'or Inf in {name} ({", ".join(parts)}), the first of '
                f'{len(broken)} such layers among {len(self._measured)}'
            )


def layers_by_stage(model: nn.Module) -> dict[str, list[Attention]]:
    """Attention layers of every LaplacianFormer in a model.

    Returns:
        Layers by ``stage0`` and so on. If the model has several backbones,
        each key starts with the backbone's name in the model.
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
            if isinstance(module, Attention)
        ]
        for name, backbone in backbones.items()
        for i, stage in enumerate(backbone.stages)
    }


def layer_figures(
    measured: dict[str, Tensor], layer: Attention
) -> dict[str, Tensor]:
    """Figures of one layer from its measurements, float64 on the CPU.

    Args:
        measured: ``w`` and ``inverse``, (B, h, M, M), ``variance`` and
            ``dead_share``, (B, h); each may be missing.
        layer: The layer; its ridge belongs to ``w``.

    Returns:
        (B, h) for each available figure, and ``landmarks``, a number.
    """
    figures = {}
    if 'w' in measured:
        w, inverse = (
            measured[name].cpu().double() for name in ('w', 'inverse')
        )
        ridge = layer.solver_cfg['ridge']
        figures['residual'] = solver_residual(w, inverse, ridge)
        figures['effective_rank'] = effective_rank(w)
        figures['landmarks'] = w.shape[-1]
        if w.shape[-1] > 1:
            figures['off_diagonal'] = mean_off_diagonal(w)
    if 'dead_share' in measured:
        share = measured['dead_share'].cpu()
        variance = measured['variance'].cpu()
        # A comparison with NaN is false, which would count as alive.
        figures['dead_share'] = share.where(variance.isfinite(), math.nan)
    return figures


def stage_figures(layers: list[dict]) -> dict[str, float]:
    """One number per figure of a stage: the largest residual, or means."""
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


def not_finite_parts(measured: dict[str, Tensor]) -> list[str]:
    """Names of the parts of a layer that hold NaN or Inf."""
    parts = [name for name in ('input', 'result') if not measured[name].item()]
    names = dict(
        w='landmark matrix', inverse='its inverse', variance='variances'
    )
    return parts + [
        shown
        for name, shown in names.items()
        if name in measured and not measured[name].isfinite().all().item()
    ]


def solver_residual(w: Tensor, inverse: Tensor, ridge: float) -> Tensor:
    """``|I - P X|_F / sqrt(M)`` for P = W + ridge I; (..., M, M) to (...).

    The value is 1 for X = 0 and at most the spectral norm.
    """
    size = w.shape[-1]
    identity = torch.eye(size, dtype=w.dtype, device=w.device)
    residual = identity - (w + ridge * identity) @ inverse
    return torch.linalg.matrix_norm(residual) / math.sqrt(size)


def effective_rank(w: Tensor) -> Tensor:
    """exp of the entropy of the normalised eigenvalues; (..., M, M) to (...).

    The matrices must be symmetric positive semi-definite, so that eigenvalues
    equal the singular values of the definition: O. Roy and M. Vetterli, "The
    effective rank: a measure of effective dimensionality", EUSIPCO 2007.
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
