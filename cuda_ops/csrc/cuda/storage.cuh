// Storage types of the kernels and offsets into strided tensors. Everything is
// computed in float32.
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

// Strides of a (B, h, rows, columns) tensor, in elements.
struct Strides {
  long long batch, head, row, column;

  // Start of the matrix with the flat index batch * heads + head.
  __device__ long long matrix(long long index, long long heads) const {
    return index / heads * batch + index % heads * head;
  }
};

__device__ inline float4 load4(const float* shared_place) {
  return *reinterpret_cast<const float4*>(shared_place);
}

// How much of a tile there is, which may be nothing.
__device__ inline int at_most(long long left, int tile) {
  return left < tile ? static_cast<int>(left) : tile;
}
