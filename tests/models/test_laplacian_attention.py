import inspect
import math

import pytest
import torch
from helpers import dense_z
from torch import nn

from cuda_ops import KERNELS, SOLVERS
from mmlaplacian.models import (
    LaplacianAttention,
    dense_attention,
    nystrom_attention,
    whitened_product,
)
from mmlaplacian.models.attention import build_attention

B, HEADS, N, M, D = 2, 3, 35, 8, 6
#: The layer's default switches, for the functions behind it.
WHITENED = dict(whitening='diagonal', centering='both')
DENSE = dict(kernel='laplacian', bandwidth=None, **WHITENED)
NYSTROM = dict(DENSE, solver='newton_schulz', num_iters=None, ridge=0.01)


@pytest.fixture
def factors():
    """C_q, C_k, P^-1 and V of random points, float64."""
    q, k, v = torch.randn(3, B, HEADS, N, D, dtype=torch.float64)
    landmarks = q[:, :, :M]
    kernel = KERNELS['laplacian'].function
    w = kernel(landmarks, landmarks, 4.0)
    p_inverse = torch.linalg.inv(w + 0.01 * torch.eye(M))
    return kernel(q, landmarks, 4.0), kernel(k, landmarks, 4.0), p_inverse, v


def dense_product(g, v, whitening, centering):
    if whitening == 'none':
        return g @ v
    if whitening == 'row':
        return g / g.sum(-1, keepdim=True).clamp(min=1e-4) @ v
    return dense_z(g, centering) @ v


@pytest.mark.parametrize('centering', ['both', 'column'])
@pytest.mark.parametrize('whitening', ['diagonal', 'none', 'row'])
def test_linear_form_equals_dense_form(factors, whitening, centering):
    c_q, c_k, p_inverse, v = factors
    out, _ = whitened_product(
        *factors, whitening=whitening, centering=centering
    )
    expected = dense_product(c_q @ p_inverse @ c_k.mT, v, whitening, centering)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('solver', SOLVERS)
@pytest.mark.parametrize('kernel', KERNELS)
def test_nystrom_equals_dense_form(kernel, solver):
    q, k, v = torch.randn(3, B, HEADS, N, D, dtype=torch.float64)
    landmarks = q[:, :, :M]
    function, bandwidth, _ = KERNELS[kernel]
    w = function(landmarks, landmarks, bandwidth)
    largest = w.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    p = w + 0.01 * largest * torch.eye(M)
    g = function(q, landmarks, bandwidth) @ torch.linalg.solve(
        p, function(k, landmarks, bandwidth).mT
    )
    switches = dict(NYSTROM, kernel=kernel, solver=solver, num_iters=80)
    out, _ = nystrom_attention(q, k, v, landmarks, **switches)
    torch.testing.assert_close(out, dense_z(g) @ v, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('centering', ['both', 'column'])
@pytest.mark.parametrize('whitening', ['diagonal', 'none', 'row'])
@pytest.mark.parametrize('kernel', KERNELS)
def test_exact_equals_dense_form(kernel, whitening, centering):
    q, k, v = torch.randn(3, B, HEADS, N, D, dtype=torch.float64)
    function, bandwidth, _ = KERNELS[kernel]
    switches = dict(
        DENSE, kernel=kernel, whitening=whitening, centering=centering
    )
    out, _ = dense_attention(q, k, v, **switches)
    expected = dense_product(
        function(q, k, bandwidth), v, whitening, centering
    )
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize('constants', [(1e-6, 1e3), (1e-12, 1e-12)])
def test_scale_of_kernel_values_cancels(factors, constants):
    factors = [t.float() for t in factors]
    expected, _ = whitened_product(*factors, **WHITENED)
    c_q, c_k, p_inverse, v = factors
    out, _ = whitened_product(
        constants[0] * c_q, constants[1] * c_k, p_inverse, v, **WHITENED
    )
    assert (out - expected).abs().max() < 1e-5


def test_gradcheck():
    q, k, v = torch.randn(3, 1, 2, 12, 4, dtype=torch.float64)
    landmarks = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (q, k, v, landmarks)]
    # The implicit gradient of the solver is that of a converged inverse.
    switches = dict(NYSTROM, num_iters=60)
    assert torch.autograd.gradcheck(
        lambda *t: nystrom_attention(*t, **switches)[0], inputs
    )


def without_local(attention):
    """Identity projection, no convolution: the branch Z V alone."""
    nn.init.eye_(attention.proj.weight)
    nn.init.zeros_(attention.proj.bias)
    return attention


def values_of(attention, x):
    return attention.qkv(x)[..., -attention.dim :]


SWITCHES = [
    dict(),
    dict(approximation='exact'),
    dict(type='SoftmaxAttention'),
    dict(type='InlineAttention'),
    dict(type='RalaAttention'),
    dict(type='RalaAttention', share_qk=True),
    dict(kernel='gaussian'),
    dict(kernel='cosine'),
    dict(kernel='polynomial'),
    dict(solver='cg', num_iters=60),
    dict(solver='cholesky'),
    dict(solver='pinv'),
    dict(landmark_source='key'),
    dict(landmark_source='mean'),
    dict(landmark_pool='dwconv'),
    dict(landmark_pool='dwconv', landmark_source='mean', share_qk=True),
    dict(whitening='row'),
    dict(whitening='none'),
    dict(centering='column'),
    dict(local_kernel_size=0),
    dict(local_kernel_size=5, qkv_bias=False),
    dict(landmark_grid=3, bandwidth=1.5),
]


@pytest.mark.parametrize('hw', [(1, 1), (2, 3), (7, 7), (1, 60), (13, 9)])
@pytest.mark.parametrize('switches', SWITCHES, ids=str)
def test_any_size_and_every_parameter_gets_a_gradient(switches, hw):
    attention = build_attention(12, 3, **switches)
    x = torch.randn(2, hw[0] * hw[1], 12, requires_grad=True)
    out = attention(x, hw)
    assert out.shape == x.shape
    out.square().sum().backward()
    for name, p in attention.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
    assert x.grad.isfinite().all()


@pytest.mark.parametrize('switches', SWITCHES, ids=str)
def test_images_do_not_depend_on_each_other(switches):
    attention = build_attention(12, 3, **switches).eval()
    a, b, c = torch.randn(3, 1, 90, 12)
    with_b = attention(torch.cat([a, b]), (10, 9))[:1]
    with_c = attention(torch.cat([a, 50 * c]), (10, 9))[:1]
    assert torch.equal(with_b, with_c)
    # Matrix products of another batch size may round differently, so the
    # image alone is compared in float64.
    attention, a, b = attention.double(), a.double(), b.double()
    with_b = attention(torch.cat([a, b]), (10, 9))[:1]
    alone = attention(a, (10, 9))
    torch.testing.assert_close(with_b, alone, rtol=1e-7, atol=1e-9)
    assert torch.equal(attention.train()(a, (10, 9)), alone)


def test_layer_equals_written_out_form():
    attention = LaplacianAttention(12, 3, landmark_grid=2).double()
    hw = (5, 7)
    x = torch.randn(2, 35, 12, dtype=torch.float64)
    out = attention(x, hw)
    q, k, v = (
        t.view(2, 35, 3, 4).transpose(1, 2)
        for t in attention.qkv(x).split(12, -1)
    )
    scale = 4**-0.25
    windows = [
        q.unflatten(2, hw)[:, :, top:bottom, left:right].mean((2, 3))
        for top, bottom in ((0, 3), (2, 5))
        for left, right in ((0, 4), (3, 7))
    ]
    landmarks = torch.stack(windows, 2) * scale
    kernel = KERNELS['laplacian'].function
    p = kernel(landmarks, landmarks, 4.0) + 0.01 * torch.eye(4)
    g = kernel(q * scale, landmarks, 4.0) @ torch.linalg.solve(
        p, kernel(k * scale, landmarks, 4.0).mT
    )
    mixed = (dense_z(g) @ v).transpose(1, 2).flatten(2)
    v_map = v.transpose(1, 2).flatten(2).transpose(1, 2).unflatten(2, hw)
    local = attention.local_conv(v_map).flatten(2).transpose(1, 2)
    expected = attention.proj(mixed + local)
    # The default iteration count leaves a residual below 1e-3.
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_few_tokens_use_the_exact_kernel():
    nystrom = LaplacianAttention(12, 3)
    exact = LaplacianAttention(12, 3, approximation='exact')
    exact.load_state_dict(nystrom.state_dict())
    x = torch.randn(2, 49, 12)
    torch.testing.assert_close(nystrom(x, (7, 7)), exact(x, (7, 7)))
    x = torch.randn(2, 56, 12)
    assert (nystrom(x, (7, 8)) - exact(x, (7, 8))).abs().max() > 1e-6


def test_constant_image_gives_the_mean_of_v():
    attention = without_local(LaplacianAttention(12, 3, local_kernel_size=0))
    x = torch.randn(2, 1, 12).expand(2, 100, 12).clone().requires_grad_()
    out = attention(x, (10, 10))
    torch.testing.assert_close(out, values_of(attention, x))
    out.square().sum().backward()
    assert x.grad.isfinite().all() and x.grad.abs().max() < 100


def test_underflow_everywhere_gives_the_mean_of_v():
    attention = without_local(LaplacianAttention(12, 3, local_kernel_size=0))
    with torch.no_grad():
        attention.qkv.weight[:24] *= 1e5
    x = torch.randn(1, 100, 12, requires_grad=True)
    # A map whose landmarks are far from every token.
    out = attention(x, (10, 10))
    expected = values_of(attention, x).mean(1, keepdim=True).expand_as(out)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    for p in (x, *attention.parameters()):
        assert p.grad.isfinite().all()


@pytest.mark.parametrize('power', [5, 20, 29, 31, 38, 44, 60])
def test_finite_gradients_where_keys_are_far_from_the_landmarks(power):
    q, k, v = torch.randn(3, 1, 2, 100, 8)
    # Kernel values of the keys are around 10^-power.
    k[..., 0] += 4 * power * math.log(10)
    inputs = [t.requires_grad_() for t in (q, k, v)]
    out, _ = nystrom_attention(*inputs, q[:, :, ::10], **NYSTROM)
    out.square().sum().backward()
    assert out.isfinite().all()
    for t in inputs:
        assert t.grad.isfinite().all()


@pytest.mark.parametrize('scale', [1e-3, 1, 10, 30, 100])
def test_finite_whatever_the_size_of_the_projections(scale):
    attention = LaplacianAttention(128, 2)
    with torch.no_grad():
        attention.qkv.weight *= scale
    x = torch.randn(1, 100, 128, requires_grad=True)
    out = attention(x, (10, 10))
    out.square().sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_float32_inside_under_autocast(dtype):
    attention = LaplacianAttention(32, 2)
    x = torch.randn(2, 400, 32)
    q, k, v = torch.randn(3, 2, 400, 32).to(dtype)
    expected, _ = attention.mix(q.float(), k.float(), v.float(), (20, 20))
    with torch.autocast('cpu', dtype=dtype):
        mixed, _ = attention.mix(q, k, v, (20, 20))
        out = attention(x, (20, 20))
    # Rounded inputs, then the very numbers of float32.
    assert mixed.dtype == torch.float32 and out.dtype == dtype
    assert torch.equal(mixed, expected)


def test_half_precision_module_keeps_its_dtype():
    attention = LaplacianAttention(32, 2).bfloat16()
    x = torch.randn(1, 100, 32).bfloat16()
    assert attention(x, (10, 10)).dtype == torch.bfloat16


def memory_for_backward(side):
    """Bytes that one layer saves for the backward pass of a square map."""
    attention = LaplacianAttention(16, 1)
    x = torch.randn(1, side**2, 16, requires_grad=True)
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.update({t.data_ptr(): t.nbytes}) or t, lambda t: t
    ):
        attention(x, (side, side)).sum().backward()
    return sum(saved.values())


def test_memory_is_linear_in_the_tokens():
    # A quadratic layer would need 16 times the memory, and 6.4 GB in all.
    assert memory_for_backward(200) < 4.1 * memory_for_backward(100)


@pytest.mark.parametrize(
    'arguments, message',
    [
        (dict(kernel='rbf'), "'laplacian'.*got 'rbf'"),
        (dict(solver='lu'), "'newton_schulz'.*got 'lu'"),
        (dict(approximation='random'), "'exact'"),
        (dict(whitening='full'), "'diagonal'"),
        (dict(centering='row'), "'both'"),
        (dict(landmark_source='value'), "'mean'"),
        (dict(landmark_pool='max'), "'dwconv'"),
        (dict(landmark_grid=0), 'got 0'),
        (dict(bandwidth=-1.0), 'got -1.0'),
        (dict(bandwidth=math.nan), 'got nan'),
        (dict(bandwidth=math.inf), 'got inf'),
        (dict(bandwidth=2.0, kernel='cosine'), "'cosine' has no bandwidth"),
        (dict(ridge=0.0), 'got 0.0'),
        (dict(ridge=math.nan), 'got nan'),
        (dict(num_iters=-3), 'got -3'),
        (dict(local_kernel_size=4), 'got 4'),
        (dict(num_heads=5), 'num_heads=5'),
    ],
)
def test_bad_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        LaplacianAttention(**{'dim': 12, 'num_heads': 3, **arguments})


@pytest.mark.parametrize(
    'switch', ['whitening', 'centering', 'kernel', 'solver']
)
def test_unknown_switch_of_the_functions(factors, switch):
    q, k, v = torch.randn(3, 1, 1, 9, 4)
    with pytest.raises(ValueError, match=f"{switch} must be.*got 'other'"):
        nystrom_attention(q, k, v, q[:, :, :3], **{**NYSTROM, switch: 'other'})
    if switch in DENSE:
        with pytest.raises(ValueError, match="got 'other'"):
            dense_attention(q, k, v, **{**DENSE, switch: 'other'})
    if switch in WHITENED:
        with pytest.raises(ValueError, match="got 'other'"):
            whitened_product(*factors, **{**WHITENED, switch: 'other'})


def test_wrong_number_of_tokens():
    with pytest.raises(ValueError, match=r'got 10 tokens and hw=\(3, 4\)'):
        LaplacianAttention(12, 3)(torch.randn(1, 10, 12), (3, 4))


@pytest.mark.parametrize(
    'type, switch, choices',
    [
        ('LaplacianAttention', 'sigma', "'bandwidth'.*'share_qk'"),
        ('SoftmaxAttention', 'bandwidth', "'local_kernel_size'"),
        ('InlineAttention', 'kernel', "'qkv_bias'"),
        ('RalaAttention', 'landmark_grid', "'share_qk'"),
    ],
)
def test_switches_that_a_mechanism_does_not_have(type, switch, choices):
    with pytest.raises(TypeError, match=rf"{type}.*\['{switch}'\].*{choices}"):
        build_attention(12, 3, type=type, **{switch: 1})


def test_unknown_mechanism():
    with pytest.raises(ValueError, match="'SoftmaxAttention'.*got 'Softmax'"):
        build_attention(12, 3, type='Softmax')


def test_signature_shows_the_switches():
    parameters = inspect.signature(LaplacianAttention).parameters
    assert {'bandwidth', 'ridge', 'share_qk', 'qkv_bias'} <= set(parameters)
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_parameter_names_of_published_checkpoints():
    def shapes(**switches):
        state = build_attention(12, 3, **switches).state_dict()
        return {name: tuple(tensor.shape) for name, tensor in state.items()}

    default = {
        'qkv.weight': (36, 12),
        'qkv.bias': (36,),
        'local_conv.weight': (12, 1, 3, 3),
        'local_conv.bias': (12,),
        'proj.weight': (12, 12),
        'proj.bias': (12,),
    }
    assert shapes() == shapes(type='SoftmaxAttention') == default
    assert shapes(share_qk=True)['qkv.weight'] == (24, 12)
    assert shapes(type='RalaAttention')['qkv.weight'] == (48, 12)
    added = shapes(landmark_pool='dwconv').items() - default.items()
    assert [*shapes(landmark_pool='dwconv')][::2] == [
        *('qkv.weight', 'local_conv.weight'),
        *('landmark_conv.weight', 'proj.weight'),
    ]
    assert dict(added) == {
        'landmark_conv.weight': (12, 1, 3, 3),
        'landmark_conv.bias': (12,),
    }
