"""Our operators in mmengine's counter, which counts 1 for a multiply-add.

``mmengine.analysis.get_model_complexity_info`` looks operators up in a table;
the formulas are those that ``cuda_ops`` gives PyTorch's own counter.
"""

from mmengine.analysis.complexity_analysis import _DEFAULT_SUPPORTED_FLOP_OPS

from cuda_ops.laplacian_kernel import flops as kernel_flops
from cuda_ops.newton_schulz import flops as inverse_flops


def laplacian_kernel(inputs: list, outputs: list) -> int:
    """Of a traced call, given as graph values (``torch._C.Value``)."""
    x, y = (value.type().sizes() for value in inputs[:2])
    return kernel_flops(x, y) // 2


def newton_schulz_inverse(inputs: list, outputs: list) -> int:
    """Of a traced call, given as graph values (``torch._C.Value``)."""
    shape, num_iters = inputs[0].type().sizes(), inputs[1].toIValue()
    return inverse_flops(shape, num_iters) // 2


_DEFAULT_SUPPORTED_FLOP_OPS.update(
    {
        'mmlaplacian::laplacian_kernel': laplacian_kernel,
        'mmlaplacian::newton_schulz_inverse': newton_schulz_inverse,
    }
)
