"""LaplacianFormer: a PVT-like pyramid of Laplacian attention."""

import math

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .arguments import list_choices
from .attention import build_attention

_WIDTHS = dict(
    embed_dims=(64, 128, 320, 512),
    num_heads=(1, 2, 5, 8),
    mlp_ratios=(8, 8, 4, 4),
)

#: One row per size. The paper publishes no stage configuration, so the depths
#: were fitted to its parameter and multiply-add totals (within 2 %). The size
#: nano is ours, for CPUs and tests.
ARCHS = {
    'nano': dict(
        embed_dims=(16, 32, 64, 128),
        depths=(1, 1, 1, 1),
        num_heads=(1, 1, 2, 4),
        mlp_ratios=(4, 4, 4, 4),
    ),
    'tiny': dict(depths=(2, 2, 2, 2), **_WIDTHS),
    'small': dict(depths=(3, 5, 7, 4), **_WIDTHS),
    'medium': dict(depths=(3, 3, 19, 6), **_WIDTHS),
    'large': dict(depths=(3, 5, 32, 6), **_WIDTHS),
    'huge': dict(depths=(3, 5, 50, 4), **_WIDTHS),
}

NUM_STAGES = 4
LAYER_NORM_EPS = 1e-6


class DropPath(nn.Module):
    """Stochastic depth: skip a residual branch at random for each image."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = x.new_empty(x.shape[0], *[1] * (x.dim() - 1)).bernoulli_(keep)
        return x * mask / keep

    def extra_repr(self) -> str:
        return f'{self.rate:.3f}'


class PatchEmbed(nn.Module):
    """Overlapping convolution and LayerNorm, as in PVTv2.

    (B, C_in, H, W) to tokens (B, N, C) and their (ceil(H / stride),
    ceil(W / stride)).
    """

    def __init__(self, in_channels: int, dim: int, kernel: int, stride: int):
        super().__init__()
        self.proj = nn.Conv2d(
            in_channels, dim, kernel, stride=stride, padding=kernel // 2
        ).to(memory_format=torch.channels_last)
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        # In channels-last memory the tokens are a view of the map.
        x = self.proj(x.contiguous(memory_format=torch.channels_last))
        hw = (x.shape[-2], x.shape[-1])
        return self.norm(x.flatten(2).transpose(1, 2)), hw


class Mlp(nn.Sequential):
    """Layers that process each token separately; (..., C).

    On a CPU, a large hidden layer is computed in chunks of tokens, because
    writing and reading fresh memory takes as long as the computation. Hooks
    on the layers then run once per chunk.
    """

    #: Elements of a hidden layer from which on it is split, and elements of a
    #: chunk: 4 MB and 2 MB in float32.
    MAX_HIDDEN = 2**20
    CHUNK = 2**19
    #: Smaller chunks spend too long accumulating weight gradients.
    MIN_CHUNK_TOKENS = 512

    def forward(self, x: Tensor) -> Tensor:
        hidden = self[0].out_features
        # Tracing would freeze this size check, so skip it.
        if (
            x.device.type != 'cpu'
            or torch.compiler.is_compiling()
            or torch.jit.is_tracing()
            or x.numel() // x.shape[-1] * hidden <= self.MAX_HIDDEN
        ):
            return super().forward(x)
        chunks = x.reshape(-1, x.shape[-1]).split(
            max(self.CHUNK // hidden, self.MIN_CHUNK_TOKENS)
        )
        return torch.cat([super(Mlp, self).forward(c) for c in chunks]).view(
            x.shape
        )


class Block(nn.Module):
    """Pre-norm block: attention, then an MLP with GELU; (B, N, C)."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        drop_path_rate: float,
        attention: dict,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.attn = build_attention(dim, num_heads, **attention)
        self.norm2 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(
            nn.Linear(dim, int(dim * mlp_ratio)),
            nn.GELU(),
            nn.Linear(int(dim * mlp_ratio), dim),
        )
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), hw))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class Stage(nn.Module):
    """Patch embedding, blocks and LayerNorm; map in, map out."""

    def __init__(self, patch_embed: PatchEmbed, blocks: list[Block], dim: int):
        super().__init__()
        self.patch_embed = patch_embed
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.with_cp = False

    def forward(self, x: Tensor) -> Tensor:
        x, hw = self.patch_embed(x)
        for block in self.blocks:
            if self.with_cp and x.requires_grad:
                x = checkpoint(block, x, hw, use_reentrant=False)
            else:
                x = block(x, hw)
        return self.norm(x).transpose(1, 2).unflatten(-1, hw)


@MODELS.register_module()
class LaplacianFormer(BaseModule):
    """Backbone of LaplacianFormer (ICLR 2026, arXiv 2604.20368).

    Each of the four stages has an overlapping patch embedding (as in PVTv2),
    pre-norm blocks with :class:`LaplacianAttention`, and a LayerNorm whose
    output feeds the next stage. There is no position embedding, so any input
    size works. Stages after ``max(out_indices)`` are not built, so that every
    parameter gets a gradient.

    Args:
        arch: A size, one of ``ARCHS``, or a dict with the keys of one of its
            rows: ``embed_dims``, ``depths``, ``num_heads``, ``mlp_ratios``,
            four numbers each. Default: ``'tiny'``.
        in_channels: Channels of the image. Default: 3.
        out_indices: Stages whose maps are returned, increasing, of 0 to 3.
            Default: (0, 1, 2, 3).
        drop_path_rate: Drop-path rate of the last block, in [0, 1); earlier
            blocks scale linearly from 0. Default: 0.1.
        frozen_stages: Number of stages, 0 to 4, that are frozen and stay in
            evaluation mode, from the first on. Default: 0.
        with_cp: Recompute each block in the backward pass to save memory.
            Default: False.
        attention: ``type``, a name in ``ATTENTIONS`` (default:
            ``'LaplacianAttention'``), and arguments of that class, such as
            ``dict(kernel='gaussian')`` or ``dict(type='SoftmaxAttention')``.
            Default: None.
        init_cfg: mmengine's initialisation; None keeps the random one.
            Default: None.

    Raises:
        TypeError, ValueError: An argument is unknown or out of its range;
            the choices are listed.

    Examples:
        >>> maps = LaplacianFormer('tiny')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape[1:]) for m in maps]
        [(64, 56, 56), (128, 28, 28), (320, 14, 14), (512, 7, 7)]
    """

    @list_choices()
    def __init__(
        self,
        arch: str | dict = 'tiny',
        in_channels: int = 3,
        out_indices: tuple[int, ...] = (0, 1, 2, 3),
        drop_path_rate: float = 0.1,
        frozen_stages: int = 0,
        with_cp: bool = False,
        attention: dict | None = None,
        init_cfg: dict | list | None = None,
    ):
        super().__init__(init_cfg=init_cfg)
        arch = _arch_row(arch)
        attention = _attention_switches(attention)
        out_indices = tuple(out_indices)
        if (
            not out_indices
            or not set(out_indices) <= set(range(NUM_STAGES))
            or list(out_indices) != sorted(set(out_indices))
        ):
            raise ValueError(
                'LaplacianFormer: out_indices must be increasing stage '
                f'numbers of 0 to {NUM_STAGES - 1}, got {out_indices}'
            )
        if not 0 <= drop_path_rate < 1:
            raise ValueError(
                'LaplacianFormer: drop_path_rate must be in [0, 1), '
                f'got {drop_path_rate}'
            )
        if frozen_stages not in range(NUM_STAGES + 1):
            raise ValueError(
                'LaplacianFormer: frozen_stages must be 0 (none) to '
                f'{NUM_STAGES}, got {frozen_stages}'
            )
        self.arch = arch
        self.out_indices = out_indices
        self.out_channels = tuple(arch['embed_dims'][i] for i in out_indices)
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList()
        depth = sum(arch['depths'])
        rates = [drop_path_rate * i / max(depth - 1, 1) for i in range(depth)]
        for i in range(max(out_indices) + 1):
            dim = arch['embed_dims'][i]
            patch_embed = PatchEmbed(
                in_channels,
                dim,
                kernel=7 if i == 0 else 3,
                stride=4 if i == 0 else 2,
            )
            blocks = [
                Block(
                    dim,
                    arch['num_heads'][i],
                    arch['mlp_ratios'][i],
                    rates.pop(0),
                    attention,
                )
                for _ in range(arch['depths'][i])
            ]
            stage = Stage(patch_embed, blocks, dim)
            stage.with_cp = with_cp
            self.stages.append(stage)
            in_channels = dim
        self.apply(_init_parameters)
        self._freeze()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the feature maps.

        Args:
            x: Images, (B, in_channels, H, W), H and W >= 1.

        Returns:
            One contiguous (B, C_i, ceil(H / s_i), ceil(W / s_i)) map for each
            of ``out_indices``, s = 4, 8, 16, 32.
        """
        maps = []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in self.out_indices:
                # RoIAlign of mmcv reads any memory as if it were contiguous.
                maps.append(x.contiguous())
        return tuple(maps)

    def train(self, mode: bool = True):
        """Set the mode; frozen stages stay in evaluation mode."""
        super().train(mode)
        self._freeze()
        return self

    def _freeze(self) -> None:
        for stage in self.stages[: self.frozen_stages]:
            stage.eval()
            stage.requires_grad_(False)


def _init_parameters(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
    elif isinstance(module, nn.Conv2d):
        fan_out = math.prod(module.kernel_size) * module.out_channels
        std = math.sqrt(2 / (fan_out // module.groups))
        nn.init.normal_(module.weight, std=std)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def _attention_switches(attention: dict | None) -> dict:
    switches = dict(attention or {})
    per_stage = sorted(switches.keys() & {'dim', 'num_heads'})
    if per_stage:
        raise TypeError(
            f'LaplacianFormer: attention must not contain {per_stage}, which '
            'arch gives for each stage'
        )
    return switches


def _arch_row(arch: str | dict) -> dict:
    if isinstance(arch, str):
        if arch not in ARCHS:
            raise ValueError(
                f'LaplacianFormer: arch must be one of {list(ARCHS)} or a '
                f'dict, got {arch!r}'
            )
        return ARCHS[arch]
    keys = set(ARCHS['tiny'])
    if not isinstance(arch, dict) or set(arch) != keys:
        raise ValueError(
            f'LaplacianFormer: an arch dict needs exactly {sorted(keys)}, '
            f'got {sorted(arch) if isinstance(arch, dict) else arch!r}'
        )
    for key, row in arch.items():
        if len(row) != NUM_STAGES:
            raise ValueError(
                f'LaplacianFormer: arch[{key!r}] needs {NUM_STAGES} numbers, '
                f'got {row}'
            )
    return dict(arch)
