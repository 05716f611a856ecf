"""State dicts with other names and wrappers, mapped to ours; torch only."""

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

#: Keys of weights and of averaged weights in training checkpoints.
CONTAINERS = ('state_dict', 'model')
EMA_CONTAINERS = ('ema_state_dict', 'state_dict_ema', 'model_ema')
#: Prefixes that wrappers and complete models add to a backbone's names.
PREFIXES = ('module.', '_orig_mod.', 'model.', 'backbone.', 'timm_model.')

NUM_STAGES = 4
#: The layouts in which PVT and PVTv2 are published: a tensor name that
#: identifies the layout, the number of its first stage, and its parts of a
#: stage with our names.
LAYOUTS = {
    'original': (
        'block1.0.attn.kv.weight',
        1,
        {
            'patch_embed{}.': 'patch_embed.',
            'block{}.': 'blocks.',
            'norm{}.': 'norm.',
        },
    ),
    'timm': (
        'stages.0.blocks.0.attn.kv.weight',
        0,
        {'stages.{}.downsample.': 'patch_embed.'},
    ),
    'mmdet': (
        'layers.0.0.projection.weight',
        0,
        {
            'layers.{}.0.': 'patch_embed.',
            'layers.{}.1.': 'blocks.',
            'layers.{}.2.': 'norm.',
        },
    ),
}
#: Layers of a stage in any layout, with our names. The numbering of mmdet's
#: MLP includes activations, dropout, and PVTv2's depthwise convolution.
LAYERS = {
    '.patch_embed.projection.': '.patch_embed.proj.',
    '.attn.attn.in_proj_': '.attn.qkv.',
    '.attn.attn.out_proj.': '.attn.proj.',
    '.mlp.fc1.': '.mlp.0.',
    '.mlp.fc2.': '.mlp.2.',
    '.ffn.layers.0.': '.mlp.0.',
    '.ffn.layers.1.': '.mlp.dwconv.',
    '.ffn.layers.3.': '.mlp.2.',
    '.ffn.layers.4.': '.mlp.2.',
}
#: Reasons why our model has no counterpart, by a part of the name.
REASONS = {
    '.attn.sr.': 'spatial reduction of keys and values; ours has landmarks',
    '.attn.norm.': 'norm after the spatial reduction',
    '.mlp.dwconv.': 'depthwise convolution in the MLP; ours is beside V',
    'pos_embed': 'position embedding; ours has none',
    'cls_token': 'class token; ours has none',
    'head.': 'head',
}


def unwrap(
    content, ema: bool = False
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Find the state dict in the content of a checkpoint file.

    Args:
        content: Result of ``torch.load``: a state dict, or dicts around it
            with the keys of ``CONTAINERS`` and ``EMA_CONTAINERS``.
        ema: Use the averaged weights. mmengine's EMAHook saves them as
            ``state_dict``, so ``ema`` makes no difference for its files.
            Default: False.

    Returns:
        The tensors by name, and the keys that lead to them.

    Raises:
        ValueError: There are no tensors, or no averaged ones.
    """
    keys = []
    wanted = ema
    while isinstance(content, dict):
        names = CONTAINERS
        if wanted and _of_ema_hook(content):
            wanted = False
        elif wanted:
            names = EMA_CONTAINERS + CONTAINERS
        key = next((k for k in names if isinstance(content.get(k), dict)), '')
        if not key:
            break
        wanted = wanted and key not in EMA_CONTAINERS
        keys.append(key)
        content = content[key]
    tensors = {}
    if isinstance(content, dict):
        tensors = {
            str(name): tensor.detach()
            for name, tensor in content.items()
            if isinstance(tensor, Tensor)
        }
    if not tensors:
        raise ValueError('holds no tensors')
    if wanted:
        raise ValueError(
            'holds no averaged weights: expected one of the keys '
            f'{list(EMA_CONTAINERS)}'
        )
    return tensors, tuple(keys)


def _of_ema_hook(content: dict) -> bool:
    last = content.get('ema_state_dict')
    return (
        isinstance(last, dict)
        and 'state_dict' in content
        and all(name.startswith('module.') or name == 'steps' for name in last)
    )


def strip_prefixes(
    state: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Remove the prefixes of wrappers and complete models.

    While some names start with one of ``PREFIXES``, these names are kept and
    the others are set aside. Prefixes may occur in any order and depth.

    Args:
        state: A state dict.

    Returns:
        The backbone's tensors by their bare names, and the other tensors by
        their full names.
    """
    aside = {}
    bare = {name: name for name in state}
    while prefix := next(
        (p for p in PREFIXES if any(n.startswith(p) for n in bare)), None
    ):
        inside = {
            name.removeprefix(prefix): full
            for name, full in bare.items()
            if name.startswith(prefix)
        }
        aside |= {
            full: state[full]
            for name, full in bare.items()
            if not name.startswith(prefix)
        }
        bare = inside
    return {name: state[full] for name, full in bare.items()}, aside


def backbone_state(
    state: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Extract the LaplacianFormer of a classifier, detector or segmentor.

    Args:
        state: State dict of the complete model, with any prefixes.

    Returns:
        The backbone's state dict, and the other tensors (heads, necks).

    Raises:
        ValueError: There is no LaplacianFormer in it.
    """
    inside, aside = strip_prefixes(state)
    kept = {n: t for n, t in inside.items() if n.startswith('stages.')}
    if not any('.attn.qkv.' in name for name in kept):
        raise ValueError(
            'holds no LaplacianFormer: expected names such as '
            f'backbone.stages.0.blocks.0.attn.qkv.weight, {_sample(state)}'
        )
    aside |= {n: t for n, t in inside.items() if n not in kept}
    return kept, aside


def compact(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to contiguous CPU memory that they do not share.

    Saving a view would save all of the memory behind it.
    """
    return {n: t.cpu().contiguous().clone() for n, t in state.items()}


@dataclass
class WarmStart:
    """Report of :func:`warm_start`.

    Attributes:
        layout: A name in ``LAYOUTS``.
        state: Our complete state dict.
        taken: Our names, each with the names of its sources.
        parameters: Number of parameters taken. A smaller kernel inside one
            of ours counts with its own size.
        total: Number of parameters in ``state``.
        unmapped: Name, shape and reason of every tensor that was not taken.
        left: Our names and shapes that keep their initialisation.
    """

    layout: str
    state: dict[str, Tensor]
    taken: dict[str, tuple[str, ...]]
    parameters: int
    total: int
    unmapped: list[tuple[str, tuple[int, ...], str]]
    left: dict[str, tuple[int, ...]]

    @property
    def share(self) -> float:
        """Share of our parameters that was taken, in [0, 1]."""
        return self.parameters / self.total

    def summary(self) -> str:
        """Numbers of tensors and parameters taken, in one line."""
        return (
            f'{len(self.taken)} of {len(self.state)} tensors, '
            f'{self.parameters:,} of {self.total:,} parameters '
            f'({self.share:.2%})'
        )

    def text(self) -> str:
        """The report as text."""
        lines = [f'layout: {self.layout}', f'taken: {self.summary()}']
        reasons = dict.fromkeys(reason for *_, reason in self.unmapped)
        for reason in reasons:
            lines.append(f'not taken, {reason}:')
            lines += [
                f'  {name} {shape}'
                for name, shape, why in self.unmapped
                if why == reason
            ]
        if self.left:
            lines.append('newly initialised, without a source:')
            lines += [f'  {name} {shape}' for name, shape in self.left.items()]
        return '\n'.join(lines)


def warm_start(
    ours: dict[str, Tensor], theirs: dict[str, Tensor]
) -> WarmStart:
    """Start a LaplacianFormer from the weights of a PVT or PVTv2.

    Block i maps to block i while both exist. q, k and v are joined into one
    projection in this order, and 1 x 1 convolutions become linear layers. A
    v1 patch embedding without overlap (4 x 4 or 2 x 2) fills the lower right
    corner of our 7 x 7 or 3 x 3 kernel and zeros the rest, which gives equal
    outputs if the stride divides the image size. A bias is taken only with
    its weight.

    Args:
        ours: Initialised state dict of a LaplacianFormer; not changed.
        theirs: State dict with the names of any of ``LAYOUTS`` and any
            prefixes.

    Returns:
        The new state dict and the report.

    Raises:
        ValueError: ``theirs`` has no known layout.
    """
    inside, aside = strip_prefixes(theirs)
    layout = next((n for n, row in LAYOUTS.items() if row[0] in inside), None)
    if layout is None:
        hint = ''
        if 'stages.0.blocks.0.attn.qkv.weight' in inside:
            hint = '; it is a LaplacianFormer already, which needs no mapping'
        raise ValueError(
            'holds no PVT or PVTv2: expected the names of whai362/PVT, timm '
            f'or mmdet, {_sample(theirs)}{hint}'
        )
    sources = _fuse({_rename(n, layout, inside): (n,) for n in inside})
    state = dict(ours)
    taken, unmapped, parameters = {}, [], 0

    def refuse(names, reason):
        unmapped.extend((n, tuple(inside[n].shape), reason) for n in names)

    # Weights before their biases.
    for name in sorted(sources, key=lambda n: n.endswith('bias')):
        names = sources[name]
        if name not in ours:
            refuse(names, _reason(name, ours))
            continue
        if name.endswith('bias') and name[:-4] + 'weight' not in taken:
            refuse(names, 'bias of a weight that was not taken')
            continue
        tensor = torch.cat([inside[n] for n in names])
        fitted = _fit(tensor, ours[name])
        if fitted.shape != ours[name].shape:
            refuse(names, f'{name} is {tuple(ours[name].shape)}')
            continue
        state[name] = fitted.to(ours[name].dtype)
        taken[name] = names
        parameters += tensor.numel()
    place = {name: i for i, name in enumerate(inside)}
    unmapped.sort(key=lambda row: place[row[0]])
    unmapped += [
        (n, tuple(t.shape), 'outside of the backbone')
        for n, t in aside.items()
    ]
    return WarmStart(
        layout=layout,
        state=state,
        taken=taken,
        parameters=parameters,
        total=sum(tensor.numel() for tensor in ours.values()),
        unmapped=unmapped,
        left={n: tuple(t.shape) for n, t in ours.items() if n not in taken},
    )


def _rename(name: str, layout: str, names) -> str:
    """Translate a tensor name; names without a counterpart stay foreign."""
    _, first, parts = LAYOUTS[layout]
    if layout == 'timm' and name.startswith('patch_embed.'):
        name = f'stages.0.{name}'
    if layout == 'original' and name.startswith('norm.'):
        # v1 has one norm, after its last stage.
        name = f'stages.{NUM_STAGES - 1}.{name}'
    for stage in range(NUM_STAGES):
        for theirs, part in parts.items():
            theirs = theirs.format(stage + first)
            if name.startswith(theirs):
                name = f'stages.{stage}.{part}{name[len(theirs) :]}'
    if layout == 'mmdet' and 'layers.0.1.0.pos_embed' in names:
        # v1 has the position embedding in the place of the first block.
        name = re.sub(
            r'(?<=\.blocks\.)[1-9]\d*', lambda m: str(int(m[0]) - 1), name
        )
    for theirs, layer in LAYERS.items():
        name = name.replace(theirs, layer)
    return name


def _fuse(sources: dict[str, tuple[str]]) -> dict[str, tuple[str, ...]]:
    """Join q and kv under the name of our fused projection."""
    fused = dict(sources)
    for name in sources:
        kv = name.replace('.attn.q.', '.attn.kv.')
        if kv != name and kv in sources:
            qkv = name.replace('.attn.q.', '.attn.qkv.')
            fused[qkv] = fused.pop(name) + fused.pop(kv)
    return fused


def _fit(tensor: Tensor, like: Tensor) -> Tensor:
    """Reshape or pad a tensor to an equivalent one of our layer."""
    if tensor.dim() != 4:
        return tensor
    if like.dim() == 2 and tensor.shape[2:] == (1, 1):
        return tensor.flatten(1)
    padding = like.shape[-1] // 2
    if tensor.shape[2:] == (padding + 1, padding + 1):
        # Our window starts `padding` pixels earlier and ends at the same one.
        return F.pad(tensor, (padding, 0, padding, 0))
    return tensor


def _reason(name: str, ours: dict) -> str:
    for part, reason in REASONS.items():
        if part in name:
            return reason
    block = re.match(r'stages\.\d+\.blocks\.\d+\.', name)
    if block and f'{block[0]}norm1.weight' not in ours:
        return 'our stage has fewer blocks'
    return 'no counterpart'


def _sample(names) -> str:
    return f'got {", ".join(list(names)[:3])}'
