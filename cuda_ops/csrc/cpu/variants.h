// The compiled variants of the CPU kernels and the choice between them.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "laplacian_kernel.h"

namespace mmlaplacian {

using Half = torch::headeronly::Half;
using BFloat16 = torch::headeronly::BFloat16;

// Sums are float, or double for double.
template <typename T>
struct RealOf {
  using type = float;
};
template <>
struct RealOf<double> {
  using type = double;
};
template <typename T>
using Real = typename RealOf<T>::type;

template <typename T>
struct Kernels {
  void (*forward)(const ForwardTask<T>&);
  void (*backward)(const BackwardTask<T, Real<T>>&);
};

struct Variant {
  const char* name;
  double (*additions)(int64_t);
  Kernels<float> f32;
  Kernels<double> f64;
  Kernels<Half> f16;
  Kernels<BFloat16> bf16;

  template <typename T>
  const Kernels<T>& kernels() const {
    if constexpr (std::is_same_v<T, float>) return f32;
    else if constexpr (std::is_same_v<T, double>) return f64;
    else if constexpr (std::is_same_v<T, Half>) return f16;
    else return bf16;
  }
};

extern const Variant kPlain;
#if defined(__x86_64__)
extern const Variant kAvx2;
extern const Variant kAvx512;
#endif

}  // namespace mmlaplacian
