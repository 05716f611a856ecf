"""The backbone under torch.compile, torch.export and torch.jit.trace."""

import pytest
import torch

import cuda_ops
from mmlaplacian.models import LaplacianFormer
from mmlaplacian.models.laplacianformer import Mlp

IMAGES = (1, 3, 64, 96)


@pytest.mark.parametrize('train', [False, True])
def test_one_graph(train):
    """torch.compile traces the whole backbone without a break."""
    model = LaplacianFormer('nano', drop_path_rate=0.0).train(train)
    # Tracing, autograd and decompositions, without the C++ of inductor.
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    images = torch.randn(IMAGES)
    expected, found = model(images), compiled(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    sum(m.sum() for m in found).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_inductor_gives_the_same_numbers():
    model = LaplacianFormer('nano', out_indices=(0,)).eval()
    images = torch.randn(IMAGES)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(
            compiled(images), model(images), rtol=1e-4, atol=1e-5
        )


def test_exported_backbone_has_standard_operators_only():
    model = LaplacianFormer('nano').eval()
    images = torch.randn(IMAGES)
    program = torch.export.export(model, (images,)).run_decompositions(
        {**torch.export.default_decompositions(), **cuda_ops.decompositions()}
    )
    assert 'mmlaplacian' not in str(program.graph)
    torch.testing.assert_close(
        program.module()(images), model(images), rtol=1e-4, atol=1e-4
    )


def test_batch_size_is_not_baked_in():
    model = LaplacianFormer('nano').eval()
    images, other = torch.randn(2, 3, 64, 96), torch.randn(5, 3, 64, 96)
    batch = torch.export.Dim('batch')
    program = torch.export.export(
        model, (images,), dynamic_shapes=({0: batch},)
    )
    traced = torch.jit.trace(model, images)
    for again in (program.module(), traced):
        torch.testing.assert_close(
            again(other), model(other), rtol=1e-4, atol=1e-5
        )
    assert model(images[:0])[0].shape == (0, 16, 16, 24)


def test_chunks_of_a_hidden_layer_give_the_same_result():
    layer = Mlp(
        torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)
    )
    x = torch.randn(2, 50, 8, requires_grad=True)
    whole = layer(x)
    whole.sum().backward()
    expected = x.grad.clone(), layer[0].weight.grad.clone()
    x.grad = layer[0].weight.grad = None
    layer.MAX_HIDDEN, layer.CHUNK, layer.MIN_CHUNK_TOKENS = 0, 32 * 7, 1
    chunked = layer(x)
    torch.testing.assert_close(chunked, whole)
    chunked.sum().backward()
    torch.testing.assert_close((x.grad, layer[0].weight.grad), expected)
    torch.testing.assert_close(layer(x[0]), whole[0])
