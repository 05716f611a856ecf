// Rate at which one thread adds floats in registers, for benchmark_ops.py.
//
// Compile with VECTOR_BYTES and the options of the instruction set, and with
// the folder of cuda_ops as include folder.
#define VARIANT benchmark
#include "common/vectors.h"

using namespace mmlaplacian::benchmark;

// Adds about `count` floats, half of them by additions and half by accumulate()
// as the kernels do, and returns the exact number.
extern "C" double additions(int64_t count) {
  constexpr int kSums = VECTOR_BYTES == 64 ? 20 : VECTOR_BYTES == 32 ? 10 : 8;
  Vector<float> sum[kSums] = {};
  auto value = splat(1e-30f);
  asm("" : "+" VECTOR_REGISTER(value));
  const int64_t rounds = count / (kSums * kLanes<float>);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kSums; j += 2) {
      sum[j] = sum[j] + value;
      sum[j + 1] = accumulate<float>(sum[j + 1], value);
      asm volatile("" : "+" VECTOR_REGISTER(sum[j]),
                   "+" VECTOR_REGISTER(sum[j + 1]));
    }
  }
  return static_cast<double>(rounds) * kSums * kLanes<float>;
}
