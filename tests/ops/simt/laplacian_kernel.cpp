#include "simt.h"

#include "laplacian_kernel.cu"

SIMT_KERNEL(laplacian_forward_float32, ForwardParams)
SIMT_KERNEL(laplacian_forward_float16, ForwardParams)
SIMT_KERNEL(laplacian_forward_bfloat16, ForwardParams)
SIMT_KERNEL(laplacian_backward_float32, BackwardParams)
SIMT_KERNEL(laplacian_backward_float16, BackwardParams)
SIMT_KERNEL(laplacian_backward_bfloat16, BackwardParams)
SIMT_KERNEL(laplacian_reduce_float32, ReduceParams)
SIMT_KERNEL(laplacian_reduce_float16, ReduceParams)
SIMT_KERNEL(laplacian_reduce_bfloat16, ReduceParams)
