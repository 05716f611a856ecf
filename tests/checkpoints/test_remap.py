"""Mapped weights compute the same in our model as in theirs."""

from pathlib import Path

import pytest
import torch
from pvt_layouts import LAYOUTS, Parts, build
from torch import nn

from mmlaplacian.checkpoints.remap import (
    backbone_state,
    strip_prefixes,
    unwrap,
    warm_start,
)
from mmlaplacian.models import ARCHS, LaplacianFormer

NANO = ARCHS['nano']
DOCS = (Path(__file__).resolve().parents[2] / 'docs/weights.md').read_text()
#: Version, depths and MLP ratios; all have the widths of tiny.
PUBLISHED = {
    'PVT-Tiny': (1, (2, 2, 2, 2), (8, 8, 4, 4)),
    'PVT-Small': (1, (3, 4, 6, 3), (8, 8, 4, 4)),
    'PVT-Medium': (1, (3, 4, 18, 3), (8, 8, 4, 4)),
    'PVT-Large': (1, (3, 8, 27, 3), (8, 8, 4, 4)),
    'PVTv2-B1': (2, (2, 2, 2, 2), (8, 8, 4, 4)),
    'PVTv2-B2': (2, (3, 4, 6, 3), (8, 8, 4, 4)),
    'PVTv2-B3': (2, (3, 4, 18, 3), (8, 8, 4, 4)),
    'PVTv2-B4': (2, (3, 8, 27, 3), (8, 8, 4, 4)),
    'PVTv2-B5': (2, (3, 6, 40, 3), (4, 4, 4, 4)),
}
#: Parts of names in v2 that have no counterpart in ours.
WITHOUT_PLACE = ('.attn.sr.', '.attn.norm.', 'dwconv', 'ffn.layers.1.', 'head')


@pytest.fixture(params=LAYOUTS, ids=lambda row: f'{row[0]}-v{row[1]}')
def source(request):
    if request.param[0] == 'mmdet':
        request.getfixturevalue('openmmlab')
    return request.param


def start(model, arch=NANO, **options):
    """Our model, started from another model's weights, and the report."""
    ours = LaplacianFormer(arch, **options).eval()
    report = warm_start(ours.state_dict(), model.state_dict())
    ours.load_state_dict(report.state)
    return ours, report


def our_functions(block):
    yield 'norm1', block.norm1
    yield 'norm2', block.norm2
    yield 'qkv', block.attn.qkv
    yield 'proj', block.attn.proj
    yield 'fc1', block.mlp[0]
    yield 'fc2', block.mlp[2]


@torch.no_grad()
def assert_equal_parts(model, layout, version, ours):
    channels = (3, *ours.arch['embed_dims'])
    for i, stage in enumerate(ours.stages):
        theirs = Parts(model, layout, version, i)
        image = torch.randn(2, channels[i], 32, 48)
        torch.testing.assert_close(
            stage.patch_embed(image)[0], theirs.embed(image)
        )
        tokens = torch.randn(2, 7, channels[i + 1])
        if theirs.norm is not None:
            torch.testing.assert_close(stage.norm(tokens), theirs.norm(tokens))
        depth = min(len(stage.blocks), len(theirs.blocks))
        for j in range(depth):
            mapped = dict(our_functions(stage.blocks[j]))
            for name, function in theirs.functions(j):
                width = 1
                if name == 'fc2':
                    width = ours.arch['mlp_ratios'][i]
                x = torch.randn(2, 7, channels[i + 1] * width)
                torch.testing.assert_close(
                    mapped[name](x), function(x), msg=f'{i} {j} {name}'
                )


def test_mapped_parts_compute_the_same(source):
    model = build(*source)
    ours, _ = start(model)
    assert_equal_parts(model, *source, ours)


@pytest.mark.parametrize('theirs, ours', [(2, 3), (3, 2)])
def test_other_depths(source, theirs, ours):
    model = build(*source, dict(NANO, depths=(1, theirs, 1, theirs)))
    mapped, report = start(model, dict(NANO, depths=(1, ours, 1, ours)))
    assert_equal_parts(model, *source, mapped)
    fewer = [r for *_, r in report.unmapped if r.endswith('fewer blocks')]
    fresh = [n for n in report.left if n.startswith('stages.3.blocks.2.')]
    assert bool(fewer) == (theirs > ours) and bool(fresh) == (theirs < ours)


def test_a_whole_block_of_v1(openmmlab):
    """A block is taken completely but for the parts that ours lacks."""
    model = build('mmdet', 1, sr_ratios=[1, 1, 1, 1])
    arch = dict(NANO, num_heads=[dim // 16 for dim in NANO['embed_dims']])
    attention = dict(type='SoftmaxAttention', local_kernel_size=0)
    ours, _ = start(model, arch, attention=attention)
    for i, stage in enumerate(ours.stages):
        x = torch.randn(2, 24, NANO['embed_dims'][i])
        with torch.no_grad():
            expected = model.layers[i][1][1](x, (4, 6))
            torch.testing.assert_close(stage.blocks[0](x, (4, 6)), expected)


@pytest.mark.parametrize('version', [1, 2])
def test_names_of_the_original_are_those_that_mmdet_converts(
    openmmlab, version
):
    from mmdet.models.backbones.pvt import pvt_convert

    theirs = build('original', version).state_dict()
    converted = pvt_convert(theirs)
    build('mmdet', version).load_state_dict(converted)
    ours = LaplacianFormer(NANO).state_dict()
    one, other = warm_start(ours, theirs), warm_start(ours, converted)
    # mmdet's v1 has no norm behind the last stage.
    last = {'stages.3.norm.weight', 'stages.3.norm.bias'}
    assert set(one.taken) - set(other.taken) == (
        last if version == 1 else set()
    )
    for name in other.taken:
        assert torch.equal(one.state[name], other.state[name]), name


def test_report_accounts_for_every_number(source):
    model = build(*source)
    theirs = model.state_dict()
    before = LaplacianFormer(NANO).state_dict()
    report = warm_start(before, theirs)
    listed = {name: shape for name, shape, _ in report.unmapped}
    assert all(shape == tuple(theirs[n].shape) for n, shape in listed.items())
    used = {name for names in report.taken.values() for name in names}
    assert used | set(listed) == set(theirs) and not used & set(listed)
    assert report.parameters == sum(theirs[n].numel() for n in used)
    assert report.total == sum(tensor.numel() for tensor in before.values())
    assert set(report.left) | set(report.taken) == set(before)
    for name in report.left:
        assert torch.equal(report.state[name], before[name])
    reasons = {reason for *_, reason in report.unmapped}
    assert not {'no counterpart', 'our stage has fewer blocks'} & reasons
    if source[1] == 2:
        expected = {n for n in theirs if any(p in n for p in WITHOUT_PLACE)}
        assert set(listed) == expected
        assert all('.local_conv.' in name for name in report.left)
    text = report.text()
    for name, shape in [*listed.items(), *report.left.items()]:
        assert f'  {name} {shape}' in text.splitlines()
    assert f'{len(report.taken)} of {len(before)} tensors' in text
    assert f'{report.parameters:,} of {report.total:,}' in text


def test_source_without_a_bias():
    model = build('original', 2, qkv_bias=False)
    ours, report = start(model)
    assert_equal_parts(model, 'original', 2, ours)
    assert 'stages.0.blocks.0.attn.qkv.bias' in report.left


def test_ours_without_a_bias():
    model = build('original', 2)
    _, report = start(model, attention=dict(qkv_bias=False))
    assert 'stages.0.blocks.0.attn.qkv.weight' in report.taken
    listed = [name for name, *_ in report.unmapped]
    assert {'block1.0.attn.q.bias', 'block1.0.attn.kv.bias'} <= set(listed)


def test_no_bias_without_its_weight():
    """In an MLP of another width only fc2.bias would fit."""
    model = build('original', 2, dict(NANO, mlp_ratios=(2, 4, 4, 4)))
    _, report = start(model)
    mlp = {n for n in report.left if n.startswith('stages.0.blocks.0.mlp.')}
    assert len(mlp) == 4
    reasons = {name: reason for name, _, reason in report.unmapped}
    assert reasons['block1.0.mlp.fc1.weight'].endswith('is (64, 16)')
    assert 'bias of a weight' in reasons['block1.0.mlp.fc2.bias']


@pytest.mark.parametrize('published', PUBLISHED)
def test_shares_of_published_sizes(published):
    """The table of docs/weights.md."""
    version, depths, ratios = PUBLISHED[published]
    arch = dict(ARCHS['tiny'], depths=depths, mlp_ratios=ratios)
    sizes = [size for size in ARCHS if size != 'nano']
    with torch.device('meta'):
        theirs = build('original', version, arch).state_dict()
        shares = [
            warm_start(LaplacianFormer(size).state_dict(), theirs).share
            for size in sizes
        ]
    cells = ' | '.join(f'{share:.1%}' for share in shares)
    assert f'\n| {published} | {cells} |\n' in DOCS


@pytest.mark.parametrize(
    'prefix',
    [
        '',
        'module.',
        'model.',
        'backbone.',
        'module.model.backbone.',
        'backbone.module.',
        '_orig_mod.module.backbone.timm_model.',
    ],
)
def test_prefixes_in_any_order(prefix):
    theirs = build('timm', 2).state_dict()
    wrapped = {prefix + name: tensor for name, tensor in theirs.items()}
    steps = torch.tensor(3)
    bare, aside = strip_prefixes({**wrapped, 'steps': steps})
    if not prefix:
        assert bare.pop('steps') is steps
    assert list(bare) == list(theirs)
    assert aside == (dict(steps=steps) if prefix else {})
    ours = LaplacianFormer(NANO).state_dict()
    one, other = warm_start(ours, theirs), warm_start(ours, wrapped)
    assert one.taken == other.taken
    assert all(torch.equal(one.state[n], other.state[n]) for n in one.state)


def test_backbone_of_a_classifier():
    backbone = LaplacianFormer(NANO)
    model = nn.ModuleDict(dict(backbone=backbone, head=nn.Linear(128, 10)))
    wrapped = {f'module.{n}': t for n, t in model.state_dict().items()}
    kept, dropped = backbone_state(wrapped)
    LaplacianFormer(NANO).load_state_dict(kept)
    assert torch.equal(
        kept['stages.3.norm.weight'], backbone.stages[3].norm.weight
    )
    assert set(dropped) == {'module.head.weight', 'module.head.bias'}


def test_a_bare_classifier():
    state = LaplacianFormer(NANO).state_dict()
    kept, dropped = backbone_state({**state, 'head.weight': torch.zeros(3)})
    assert list(kept) == list(state) and list(dropped) == ['head.weight']


@pytest.mark.parametrize(
    'wrap, keys',
    [
        (lambda s: s, ()),
        (lambda s: dict(state_dict=s, meta=dict(epoch=3)), ('state_dict',)),
        (lambda s: dict(model=s, optimizer={}), ('model',)),
        (lambda s: dict(model=dict(state_dict=s)), ('model', 'state_dict')),
    ],
)
def test_containers(wrap, keys):
    state = nn.Linear(3, 3).state_dict()
    found, path = unwrap(wrap(state))
    assert path == keys and list(found) == list(state)
    with pytest.raises(ValueError, match='no averaged'):
        unwrap(wrap(state), ema=True)


@pytest.mark.parametrize(
    'wrap',
    [
        lambda last, mean: dict(model=last, model_ema=mean),
        lambda last, mean: dict(state_dict=last, state_dict_ema=mean),
        lambda last, mean: dict(model=last, model_ema=dict(state_dict=mean)),
        lambda last, mean: dict(state_dict=last, ema_state_dict=mean),
    ],
)
def test_averaged_weights(wrap):
    last, mean = (dict(weight=torch.full((2,), float(i))) for i in range(2))
    found, _ = unwrap(wrap(last, mean))
    assert torch.equal(found['weight'], last['weight'])
    found, _ = unwrap(wrap(last, mean), ema=True)
    assert torch.equal(found['weight'], mean['weight'])


@pytest.mark.parametrize('content', [{}, dict(a=1), [1], nn.Linear(1, 1)])
def test_no_tensors(content):
    with pytest.raises(ValueError, match='no tensors'):
        unwrap(content)


def test_another_model():
    ours = LaplacianFormer(NANO).state_dict()
    other = nn.Linear(3, 3).state_dict()
    with pytest.raises(ValueError, match='no PVT or PVTv2: .*got weight, '):
        warm_start(ours, other)
    with pytest.raises(ValueError, match='LaplacianFormer already'):
        warm_start(ours, ours)
    with pytest.raises(ValueError, match='holds no LaplacianFormer'):
        backbone_state(build('timm', 2).state_dict())


def test_nothing_of_another_width_is_taken():
    wide = dict(NANO, embed_dims=(32, 64, 128, 256))
    _, report = start(build('original', 2, wide))
    assert report.share == 0 and not report.taken
    assert len(report.unmapped) == len(build('original', 2).state_dict())
