"""Launches on a GPU: streams, graphs, threads and large tensors."""

import threading

import pytest
import torch

from cuda_ops import laplacian_kernel, newton_schulz_inverse
from cuda_ops.laplacian_kernel import reference


def sample(gpu, n=300):
    x = torch.randn(2, n, 32, device=gpu)
    return x, x[:, :49].clone()


def expected_kernel(x, y):
    return laplacian_kernel(x.double().cpu(), y.double().cpu()).float()


def test_opcheck(gpu):
    x, y = (t.requires_grad_() for t in sample(gpu))
    kernel = laplacian_kernel(x, y).detach()
    square = kernel[:, :49].clone().requires_grad_()
    ops = torch.ops.mmlaplacian
    for op, arguments in (
        (ops.laplacian_kernel, (x, y, 4.0)),
        (
            ops.laplacian_kernel_backward,
            (kernel, x.detach(), y.detach(), kernel, 4.0),
        ),
        (ops.newton_schulz_inverse, (square, 18, 0.01, 'identity')),
    ):
        torch.library.opcheck(op.default, arguments)


def test_side_streams(gpu):
    x, y = sample(gpu, 20_000)
    expected = expected_kernel(x + 1, y)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # The work takes longer than a launch that does not wait for it.
        torch.cuda._sleep(50_000_000)
        x += 1
        kernel = laplacian_kernel(x, y)
        copy = kernel.clone()
    stream.synchronize()
    torch.testing.assert_close(copy.cpu(), expected, rtol=1e-5, atol=1e-6)


def test_graph_capture(gpu):
    x, y = sample(gpu)
    laplacian_kernel(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel = laplacian_kernel(x, y)
        inverse = newton_schulz_inverse(kernel[:, :49])
    x.copy_(torch.randn_like(x))
    x[:, :49] = y
    graph.replay()
    torch.cuda.synchronize()
    expected = expected_kernel(x, y)
    torch.testing.assert_close(kernel.cpu(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(inverse, newton_schulz_inverse(kernel[:, :49]))


def test_threads_with_no_context_of_their_own(gpu):
    x, y = sample(gpu)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(laplacian_kernel(x, y).cpu())
    )
    thread.start()
    thread.join()
    torch.testing.assert_close(
        found[0], expected_kernel(x, y), rtol=1e-5, atol=1e-6
    )


def test_backward_of_a_module(gpu):
    x, y = sample(gpu)
    results = []
    for device, dtype in ((gpu, torch.float32), ('cpu', torch.float64)):
        leaves = [
            t.to(device, dtype).detach().requires_grad_() for t in (x, y)
        ]
        kernel = laplacian_kernel(*leaves)
        newton_schulz_inverse(kernel[:, :49]).sum().backward()
        results.append([leaf.grad.double().cpu() for leaf in leaves])
    for fast, exact in zip(*results, strict=True):
        torch.testing.assert_close(fast, exact, rtol=1e-3, atol=1e-3)


def test_the_last_device(gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip('there is one GPU')
    last = torch.device('cuda', torch.cuda.device_count() - 1)
    x, y = sample(last)
    kernel = laplacian_kernel(x, y)
    assert kernel.device == last
    torch.testing.assert_close(
        kernel.cpu(), expected_kernel(x, y), rtol=1e-5, atol=1e-6
    )


def test_more_values_than_32_bits_can_count(gpu):
    # 2.2e9 values of float16: 4.4 GB, and twice that for the gradient.
    if torch.cuda.mem_get_info()[0] < 24e9:
        pytest.skip('less than 24 GB are free')
    x = torch.randn(32, 66_800, 8, device=gpu, dtype=torch.float16)
    y = torch.randn(32, 1025, 8, device=gpu, dtype=torch.float16)
    kernel = laplacian_kernel(x, y)
    end = kernel[-1, -100:].cpu()
    exact = expected_kernel(x[-1, -100:], y[-1])
    torch.testing.assert_close(end.float(), exact, rtol=2e-3, atol=1e-4)
    backward = torch.ops.mmlaplacian.laplacian_kernel_backward
    grad_x, _ = backward(kernel, x, y, kernel, 4.0)
    exact_x, _ = reference.laplacian_kernel_backward(
        kernel[-1, -100:].double(),
        x[-1, -100:].double(),
        y[-1].double(),
        kernel[-1, -100:].double(),
        4.0,
    )
    torch.testing.assert_close(
        grad_x[-1, -100:].double(), exact_x, rtol=1e-2, atol=1e-2
    )
