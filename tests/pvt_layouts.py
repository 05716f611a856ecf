"""PVT and PVTv2 with the tensor names of each published layout.

Of whai362/PVT (classification/pvt.py, pvt_v2.py) and timm (models/pvt_v2.py)
only what has tensors is here; mmdet's classes are the real ones.
"""

from functools import partial

import torch
from torch import nn

from mmlaplacian.models import ARCHS

LayerNorm = partial(nn.LayerNorm, eps=1e-6)
SR_RATIOS = (8, 4, 2, 1)
LAYOUTS = (
    ('original', 1),
    ('original', 2),
    ('timm', 2),
    ('mmdet', 1),
    ('mmdet', 2),
)


class Attention(nn.Module):
    def __init__(self, dim, sr_ratio, qkv_bias):
        super().__init__()
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, sr_ratio, sr_ratio)
            self.norm = LayerNorm(dim)


class Mlp(nn.Module):
    def __init__(self, dim, hidden, dwconv):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        if dwconv is not None:
            self.dwconv = dwconv
        self.fc2 = nn.Linear(hidden, dim)


class Block(nn.Module):
    def __init__(self, dim, hidden, sr_ratio, dwconv, qkv_bias):
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = Attention(dim, sr_ratio, qkv_bias)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, hidden, dwconv)


class PatchEmbed(nn.Module):
    def __init__(self, in_channels, dim, kernel, stride, padding):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, kernel, stride, padding)
        self.norm = LayerNorm(dim)

    def forward(self, x):
        return self.norm(self.proj(x).flatten(2).transpose(1, 2))


def patch_embeds(version, dims):
    channels = (3, *dims)
    for i in range(4):
        stride = 4 if i == 0 else 2
        kernel = 2 * stride - 1 if version == 2 else stride
        padding = kernel // 2 if version == 2 else 0
        yield PatchEmbed(*channels[i : i + 2], kernel, stride, padding)


def depthwise(dim):
    return nn.Conv2d(dim, dim, 3, padding=1, groups=dim)


def original(version, dims, depths, ratios, qkv_bias=True):
    """pvt_* and pvt_v2_* of whai362/PVT, classifiers for 224 x 224."""
    model = nn.Module()
    side = 56
    for i, embed in enumerate(patch_embeds(version, dims), 1):
        dim, hidden = dims[i - 1], dims[i - 1] * ratios[i - 1]
        blocks = nn.ModuleList()
        for _ in range(depths[i - 1]):
            dwconv = None
            if version == 2:
                dwconv = nn.Module()
                dwconv.dwconv = depthwise(hidden)
            sr_ratio = SR_RATIOS[i - 1]
            blocks.append(Block(dim, hidden, sr_ratio, dwconv, qkv_bias))
        setattr(model, f'patch_embed{i}', embed)
        setattr(model, f'block{i}', blocks)
        if version == 2:
            setattr(model, f'norm{i}', LayerNorm(dim))
        else:
            tokens = side**2 + (i == 4)
            position = nn.Parameter(torch.zeros(1, tokens, dim))
            setattr(model, f'pos_embed{i}', position)
            side //= 2
    if version == 1:
        model.norm = LayerNorm(dims[3])
        model.cls_token = nn.Parameter(torch.zeros(1, 1, dims[3]))
    model.head = nn.Linear(dims[3], 10)
    return model


def timm(version, dims, depths, ratios):
    """pvt_v2_* of timm, a classifier."""
    model = nn.Module()
    model.stages = nn.ModuleList()
    for i, embed in enumerate(patch_embeds(version, dims)):
        stage = nn.Module()
        if i == 0:
            model.patch_embed = embed
        else:
            stage.downsample = embed
        hidden = dims[i] * ratios[i]
        stage.blocks = nn.ModuleList(
            Block(dims[i], hidden, SR_RATIOS[i], depthwise(hidden), True)
            for _ in range(depths[i])
        )
        stage.norm = LayerNorm(dims[i])
        model.stages.append(stage)
    model.head = nn.Linear(dims[3], 10)
    return model


def mmdet(version, dims, depths, ratios, **options):
    """The backbones of the installed mmdet."""
    from mmdet.models.backbones import pvt

    names = ('PyramidVisionTransformer', 'PyramidVisionTransformerV2')
    return getattr(pvt, names[version - 1])(
        embed_dims=dims[0],
        num_layers=depths,
        num_heads=[dim // dims[0] for dim in dims],
        mlp_ratios=ratios,
        **options,
    )


def build(layout, version, arch=ARCHS['nano'], **options):
    """A model of a layout with random numbers in every tensor."""
    make = dict(original=original, timm=timm, mmdet=mmdet)[layout]
    sizes = (arch[key] for key in ('embed_dims', 'depths', 'mlp_ratios'))
    model = make(version, *map(list, sizes), **options).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


class Parts:
    """Parts of a stage of any layout, as functions of (B, N, C)."""

    def __init__(self, model, layout, version, stage):
        if layout == 'original':
            self.embed = getattr(model, f'patch_embed{stage + 1}')
            self.blocks = getattr(model, f'block{stage + 1}')
            self.norm = getattr(model, f'norm{stage + 1}', None)
            if version == 1 and stage == 3:
                self.norm = model.norm
        elif layout == 'timm':
            inside = model.stages[stage]
            self.embed = inside.downsample if stage else model.patch_embed
            self.blocks, self.norm = inside.blocks, inside.norm
        else:
            embed, blocks, norm = model.layers[stage]
            self.embed = lambda x: embed(x)[0]
            self.blocks = blocks[1:] if version == 1 else blocks
            self.norm = norm if version == 2 else None

    def functions(self, block):
        """Names and functions of a block's layers."""
        block = self.blocks[block]
        yield 'norm1', block.norm1
        yield 'norm2', block.norm2
        attn = block.attn
        if hasattr(attn, 'attn'):
            attn = attn.attn
            yield (
                'qkv',
                lambda x: nn.functional.linear(
                    x, attn.in_proj_weight, attn.in_proj_bias
                ),
            )
            yield 'proj', attn.out_proj
            layers = block.ffn.layers
            convolutions = [m for m in layers if isinstance(m, nn.Conv2d)]
            yield 'fc1', on_tokens(convolutions[0])
            yield 'fc2', on_tokens(convolutions[-1])
        else:
            yield 'qkv', lambda x: torch.cat([attn.q(x), attn.kv(x)], -1)
            yield 'proj', attn.proj
            yield 'fc1', block.mlp.fc1
            yield 'fc2', block.mlp.fc2


def on_tokens(convolution):
    """A 1 x 1 convolution of (B, N, C)."""
    return lambda x: convolution(x.mT[..., None])[..., 0].mT
