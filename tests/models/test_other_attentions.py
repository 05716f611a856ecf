"""Softmax, InLine and RALA against their dense forms and in the layer."""

import pytest
import torch

from mmlaplacian import apis
from mmlaplacian.models import ATTENTIONS, LaplacianFormer

B, HEADS, N, D = 2, 3, 35, 6


def dense_softmax(q, k):
    return (q @ k.mT / D**0.5).softmax(-1)


def dense_inline(q, k):
    """Equation 5 of InLine, with the scale of its code."""
    scores = q @ k.mT / (D**0.5 * q.shape[-2])
    return scores - scores.mean(-1, keepdim=True) + 1 / q.shape[-2]


def dense_rala(q, k):
    def features(x):
        return torch.where(x > 0, x + 1, x.exp())

    q, k = features(q), features(k)
    attended = (q.mean(-2, keepdim=True) @ k.mT / D**0.5).softmax(-1)
    scores = (q @ k.mT) * attended
    return scores / (scores.sum(-1, keepdim=True) + 1e-6)


DENSE = dict(
    SoftmaxAttention=dense_softmax,
    InlineAttention=dense_inline,
    RalaAttention=dense_rala,
)


def test_every_attention_has_a_dense_form():
    assert {*DENSE, 'LaplacianAttention'} == set(ATTENTIONS)


@pytest.mark.parametrize('num_tokens', [1, 2, N])
@pytest.mark.parametrize('name', DENSE)
def test_equals_dense_form(name, num_tokens):
    q, k, v = torch.randn(3, B, HEADS, num_tokens, D, dtype=torch.float64)
    out = ATTENTIONS[name].function(q, k, v)
    torch.testing.assert_close(out, DENSE[name](q, k) @ v)


@pytest.mark.parametrize('name', DENSE)
def test_weights_of_each_query_sum_to_one(name):
    q, k = torch.randn(2, B, HEADS, N, D, dtype=torch.float64)
    ones = torch.ones(B, HEADS, N, D, dtype=torch.float64)
    out = ATTENTIONS[name].function(q, k, ones)
    # RALA adds 1e-6 to its row sums.
    torch.testing.assert_close(out, ones, rtol=1e-5, atol=0)


@pytest.mark.parametrize('name', DENSE)
def test_gradients_equal_those_of_the_dense_form(name):
    inputs = torch.randn(3, B, HEADS, N, D, dtype=torch.float64)
    weights = torch.randn(B, HEADS, N, D, dtype=torch.float64)
    grads = []
    for function in (
        ATTENTIONS[name].function,
        lambda q, k, v: DENSE[name](q, k) @ v,
    ):
        leaves = [t.clone().requires_grad_() for t in inputs]
        (function(*leaves) * weights).sum().backward()
        grads.append([t.grad for t in leaves])
    torch.testing.assert_close(*grads)


def dense_layer(attention, x, name, hw):
    """The whole layer, written out for one head after the other."""
    parts = attention.qkv(x).chunk(attention.num_parts, -1)
    gate = parts[3] if name == 'RalaAttention' else 1
    heads = zip(*(p.split(D, -1) for p in parts[:3]), strict=True)
    mixed = torch.cat([DENSE[name](q, k) @ v for q, k, v in heads], -1)
    value_map = parts[2].mT.unflatten(-1, hw)
    local = attention.local_conv(value_map).flatten(2).mT
    return attention.proj((mixed + local) * gate)


@pytest.mark.parametrize('name', DENSE)
def test_layer_keeps_all_but_the_mixing(name):
    attention = ATTENTIONS[name](HEADS * D, HEADS).double()
    x = torch.randn(B, N, HEADS * D, dtype=torch.float64)
    torch.testing.assert_close(
        attention(x, (5, 7)), dense_layer(attention, x, name, (5, 7))
    )


def test_backbones_differ_in_the_gate_alone():
    ours = LaplacianFormer('nano').state_dict()
    for name, mechanism in ATTENTIONS.items():
        other = LaplacianFormer('nano', attention=dict(type=name))
        shapes = {n: t.shape for n, t in other.state_dict().items()}
        assert shapes.keys() == ours.keys()
        different = {n for n in shapes if shapes[n] != ours[n].shape}
        fused = {n for n in shapes if '.qkv.' in n}
        assert different == (fused if mechanism.gated else set())


@pytest.mark.parametrize('name', DENSE)
def test_softmax_is_quadratic_and_the_others_are_linear(name):
    attention = ATTENTIONS[name](HEADS * D, HEADS)
    small, large = (
        attention.multiply_adds(hw)['products'] for hw in ((8, 8), (16, 16))
    )
    assert large == (16 if name == 'SoftmaxAttention' else 4) * small


@pytest.mark.parametrize('name', ['InlineAttention', 'RalaAttention'])
def test_formula_equals_what_pytorch_counts(name):
    from torch.utils.flop_counter import FlopCounterMode

    attention = ATTENTIONS[name](HEADS * D, HEADS, local_kernel_size=0)
    x = torch.randn(1, 1024, HEADS * D)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        attention(x, (32, 32))
    counted = apis.count(attention, x, (32, 32))
    # The formula leaves out products with one vector for each head.
    assert counted.core == pytest.approx(counter.get_total_flops() / 2, 0.03)


@pytest.mark.parametrize('name', DENSE)
def test_compiles_into_one_graph(name):
    model = LaplacianFormer('nano', attention=dict(type=name)).eval()
    images = torch.randn(1, 3, 64, 64)
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))
