// Tensors of the CUDA kernels and their dtypes. Kernels compute in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

__device__ inline void store(float* place, float value) { *place = value; }
__device__ inline void store(__half* place, float value) {
  *place = __float2half(value);
}
__device__ inline void store(__nv_bfloat16* place, float value) {
  *place = __float2bfloat16(value);
}

// A (B, h, rows, columns) tensor, as common/launcher.py packs it.
struct Tensor {
  void* data;
  long long size[4];
  long long stride[4];  // in elements

  __device__ long long rows() const { return size[2]; }
  __device__ long long columns() const { return size[3]; }
  __device__ long long row_stride() const { return stride[2]; }
  __device__ long long column_stride() const { return stride[3]; }

  // Start of the matrix with the flat index batch * h + head.
  template <typename T>
  __device__ T* matrix(long long index) const {
    return static_cast<T*>(data) + index / size[1] * stride[0] +
           index % size[1] * stride[1];
  }
};

__device__ inline long long ceil_divide(long long a, long long b) {
  return (a + b - 1) / b;
}

__device__ inline float4 load4(const float* shared_place) {
  return *reinterpret_cast<const float4*>(shared_place);
}

// Number of elements in the tile; none are left if it is not positive.
__device__ inline int at_most(long long left, int tile) {
  return left < tile ? static_cast<int>(left) : tile;
}
