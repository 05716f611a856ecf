import importlib
import inspect
import math

import pytest
import torch
from mmengine.registry import MODELS, Registry

from mmlaplacian.models import ARCHS, LaplacianFormer

#: Parameters with a 1000-class head (million) and multiply-adds at 224
#: (billion) of the paper, ImageNet table.
PAPER = {
    'tiny': (12.1, 2.1),
    'small': (25.7, 4.8),
    'medium': (46.3, 7.43),
    'large': (63.1, 11.2),
    'huge': (78.5, 15.5),
}
HEAD = 512 * 1000 + 1000


def meta_model(arch):
    with torch.device('meta'):
        return LaplacianFormer(arch).eval()


@pytest.mark.parametrize('arch', PAPER)
def test_parameters_of_the_paper(arch):
    count = sum(p.numel() for p in meta_model(arch).parameters()) + HEAD
    assert count / 1e6 == pytest.approx(PAPER[arch][0], rel=0.02)


def core_multiply_adds(arch, side=224):
    """Convolutions, linear layers and kernel-times-value products."""
    model, total = meta_model(arch), 0

    def note(layer, given, output):
        nonlocal total
        # Weights that one output number is made from.
        total += output.numel() * layer.weight[0].numel()

    for layer in model.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            layer.register_forward_hook(note)
    model(torch.empty(1, 3, side, side, device='meta'))
    for i, stage in enumerate(model.stages):
        n = math.ceil(side / 2 ** (i + 2)) ** 2
        dim = ARCHS[arch]['embed_dims'][i]
        products = n * n * dim if n <= 49 else 2 * n * 49 * dim
        total += len(stage.blocks) * products
    return total + HEAD


@pytest.mark.parametrize('arch', PAPER)
def test_multiply_adds_of_the_paper(arch):
    assert core_multiply_adds(arch) / 1e9 == pytest.approx(
        PAPER[arch][1], rel=0.02
    )


@pytest.mark.parametrize('arch', ARCHS)
def test_channels_and_strides(arch):
    with torch.device('meta'):
        model = LaplacianFormer(arch)
        maps = model(torch.empty(2, 3, 64, 96))
    assert model.out_channels == ARCHS[arch]['embed_dims']
    assert [tuple(m.shape) for m in maps] == [
        (2, c, 64 // s, 96 // s)
        for c, s in zip(model.out_channels, (4, 8, 16, 32), strict=True)
    ]


@pytest.mark.parametrize(
    'size', [(33, 47), (201, 333), (224, 224), (7, 5), (1, 1), (448, 16)]
)
def test_odd_sizes(size):
    model = LaplacianFormer('nano')
    x = torch.randn(1, 3, *size, requires_grad=True)
    maps = model(x)
    for m, stride in zip(maps, (4, 8, 16, 32), strict=True):
        assert m.shape[-2:] == tuple(math.ceil(s / stride) for s in size)
        assert m.is_contiguous()
    sum(m.square().sum() for m in maps).backward()
    assert x.grad.isfinite().all()


def test_channels_last_images_give_contiguous_equal_maps():
    model = LaplacianFormer('nano').eval()
    x = torch.randn(2, 3, 64, 64)
    expected = model(x)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=memory_format)
        maps = model(x.to(memory_format=torch.channels_last))
        for m, e in zip(maps, expected, strict=True):
            assert m.is_contiguous()
            torch.testing.assert_close(m, e, rtol=1e-4, atol=1e-5)


OUT_INDICES = [(0,), (3,), (0, 2), (1, 2, 3), (0, 1, 2, 3)]


@pytest.mark.parametrize('landmark_pool', ['avg', 'dwconv'])
@pytest.mark.parametrize('size', [64, 224])
@pytest.mark.parametrize('out_indices', OUT_INDICES, ids=str)
def test_every_parameter_gets_a_gradient(out_indices, size, landmark_pool):
    model = LaplacianFormer(
        'nano',
        out_indices=out_indices,
        attention=dict(landmark_pool=landmark_pool),
    )
    maps = model(torch.randn(1, 3, size, size))
    assert len(maps) == len(out_indices)
    assert len(model.stages) == max(out_indices) + 1
    sum(m.square().sum() for m in maps).backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None]
    assert not missing


def test_checkpointing_changes_nothing():
    results = []
    for with_cp in (False, True):
        torch.manual_seed(1)
        model = LaplacianFormer('nano', with_cp=with_cp, drop_path_rate=0.5)
        x = torch.randn(2, 3, 64, 64)
        maps = model(x)
        sum(m.square().sum() for m in maps).backward()
        results.append([*maps, *(p.grad for p in model.parameters())])
    for plain, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_checkpointing_saves_memory():
    sizes = []
    for with_cp in (False, True):
        saved = []
        model = LaplacianFormer('nano', with_cp=with_cp)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t
        ):
            model(torch.randn(1, 3, 64, 64))
        sizes.append(sum(saved))
    assert sizes[1] < sizes[0] / 2


@pytest.mark.parametrize('frozen_stages', range(5))
def test_frozen_stages(frozen_stages):
    model = LaplacianFormer('nano', frozen_stages=frozen_stages).train()
    for i, stage in enumerate(model.stages):
        frozen = i < frozen_stages
        assert stage.training is not frozen
        assert all(p.requires_grad is not frozen for p in stage.parameters())
    maps = model(torch.randn(1, 3, 64, 64))
    if frozen_stages < 4:
        maps[-1].sum().backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in trained)


def test_drop_path_rises_over_the_blocks():
    model = LaplacianFormer('tiny', drop_path_rate=0.2)
    rates = [b.drop_path.rate for s in model.stages for b in s.blocks]
    assert rates == pytest.approx([0.2 * i / 7 for i in range(8)])


def test_drop_path_is_off_in_evaluation():
    model = LaplacianFormer('nano', drop_path_rate=0.9).eval()
    x = torch.randn(1, 3, 64, 64)
    for a, b in zip(model(x), model(x), strict=True):
        assert torch.equal(a, b)
    model.train()
    torch.manual_seed(0)
    first = model(x)
    assert not torch.equal(first[-1], model(x)[-1])


def test_initialisation():
    model = LaplacianFormer('tiny')
    weight = model.stages[3].blocks[0].attn.qkv.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    conv = model.stages[1].patch_embed.proj.weight
    assert conv.std().item() == pytest.approx(
        math.sqrt(2 / (9 * 128)), rel=0.05
    )
    local = model.stages[3].blocks[0].attn.local_conv.weight
    assert local.std().item() == pytest.approx(math.sqrt(2 / 9), rel=0.1)


def test_arch_as_dict():
    row = dict(
        embed_dims=[8, 8, 16, 16],
        depths=[1, 2, 1, 1],
        num_heads=[1, 1, 2, 2],
        mlp_ratios=[2, 2, 2, 2],
    )
    model = LaplacianFormer(row, in_channels=1)
    assert model.out_channels == (8, 8, 16, 16)
    assert len(model.stages[1].blocks) == 2
    assert model(torch.randn(1, 1, 32, 32))[0].shape == (1, 8, 8, 8)


def test_attention_arguments_reach_the_layers():
    model = LaplacianFormer('nano', attention=dict(kernel='gaussian'))
    assert model.stages[2].blocks[0].attn.kernel == 'gaussian'


@pytest.mark.parametrize(
    'arguments, error, message',
    [
        (dict(arch='giant'), ValueError, "'nano'.*'huge'.*got 'giant'"),
        (dict(arch=dict(depths=[1])), ValueError, 'embed_dims.*mlp_ratios'),
        (
            dict(arch={**ARCHS['nano'], 'depths': [1, 1]}),
            ValueError,
            r"'depths'.* 4 numbers",
        ),
        (dict(depth=50), TypeError, r"\['depth'\].*'arch'.*'out_indices'"),
        (
            dict(attention=dict(sigma=2)),
            TypeError,
            r"\['sigma'\].*'bandwidth'.*'kernel'",
        ),
        (dict(attention=dict(dim=8)), TypeError, r"\['dim'\]"),
        (dict(attention=dict(kernel='rbf')), ValueError, "got 'rbf'"),
        (dict(attention=dict(type='GLA')), ValueError, "got 'GLA'"),
        (dict(out_indices=(0, 4)), ValueError, r'0 to 3, got \(0, 4\)'),
        (dict(out_indices=(-1,)), ValueError, r'got \(-1,\)'),
        (dict(out_indices=(2, 1)), ValueError, 'increasing'),
        (dict(out_indices=()), ValueError, r'got \(\)'),
        (dict(drop_path_rate=1.0), ValueError, 'got 1.0'),
        (dict(frozen_stages=-1), ValueError, 'got -1'),
    ],
)
def test_bad_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        LaplacianFormer(**arguments)


def test_signature_is_that_of_the_constructor():
    parameters = inspect.signature(LaplacianFormer).parameters
    assert list(parameters)[:3] == ['arch', 'in_channels', 'out_indices']
    assert parameters['arch'].default == 'tiny'
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_bare_name_from_every_scope(scope, openmmlab):
    registry = importlib.import_module(f'{scope}.registry').MODELS
    model = registry.build(dict(type='LaplacianFormer', arch='nano'))
    assert type(model) is LaplacianFormer


def test_bare_name_from_a_scope_that_is_not_installed():
    # mmpretrain needs torchvision; its registry is a child of the root's too.
    child = Registry('model', parent=MODELS, scope='mmpretrain-like')
    model = child.build(dict(type='LaplacianFormer', arch='nano'))
    assert type(model) is LaplacianFormer
