// The operators' CPU kernels for PyTorch's dispatcher, through the stable ABI:
// one build serves every PyTorch from 2.10 on.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/variants.h"

#define MMLAPLACIAN_STRING(text) MMLAPLACIAN_QUOTE(text)
#define MMLAPLACIAN_QUOTE(text) #text

namespace mmlaplacian {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// cuda_ops/compiled.py looks for it in the file before it loads the library.
__attribute__((used)) const char kSources[] =
    "mmlaplacian-sources:" MMLAPLACIAN_STRING(MMLAPLACIAN_SOURCES);

// The variants that this processor runs, best first.
std::vector<const Variant*> variants() {
  std::vector<const Variant*> found;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    found.push_back(&kAvx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back(&kAvx2);
#endif
  found.push_back(&kPlain);
  return found;
}

std::atomic<const Variant*> chosen{variants().front()};

// Tokens of a piece of the forward pass, and the elements (n, m, d) that are
// worth a thread.
constexpr int64_t kForwardTokens = 48;
constexpr int64_t kForwardElements = 1 << 20;
// The most tokens in a sum over tokens. Its length is the same for any number
// of threads, so that the results are.
constexpr int64_t kBackwardTokens = 1024;

// Bytes of a result that a cache may still hold when it is read.
constexpr int64_t kLargestCache = 4 << 20;

// The last two axes of a (..., rows, columns) tensor at any leading index.
template <typename T>
class Batch {
 public:
  Batch(const Tensor& tensor, T* data) : data_(data) {
    const int64_t dim = tensor.dim();
    row_ = tensor.stride(dim - 2);
    column_ = tensor.stride(dim - 1);
    for (int64_t i = 0; i < dim - 2; ++i) {
      sizes_.push_back(tensor.size(i));
      strides_.push_back(tensor.stride(i));
    }
  }

  Matrix<T> operator[](int64_t index) const {
    int64_t offset = 0;
    for (size_t i = sizes_.size(); i-- > 0; index /= sizes_[i])
      offset += index % sizes_[i] * strides_[i];
    return {data_ + offset, row_, column_};
  }

 private:
  T* data_;
  int64_t row_, column_;
  std::vector<int64_t> sizes_, strides_;
};

template <typename T>
Batch<const T> reading(const Tensor& tensor) {
  return {tensor, static_cast<const T*>(tensor.const_data_ptr())};
}

template <typename T>
Batch<T> writing(const Tensor& tensor) {
  return {tensor, static_cast<T*>(tensor.mutable_data_ptr())};
}

struct Sizes {
  int64_t batch = 1, n, m, d;
  Sizes(const Tensor& x, const Tensor& y) {
    const int64_t dim = x.dim();
    n = x.size(dim - 2);
    m = y.size(dim - 2);
    d = x.size(dim - 1);
    for (int64_t i = 0; i < dim - 2; ++i) batch *= x.size(i);
  }
};

// As "(2, 49, 32) Float", for messages.
std::string describe(const Tensor& tensor) {
  std::string text = "(";
  for (int64_t i = 0; i < tensor.dim(); ++i)
    text += (i ? ", " : "") + std::to_string(tensor.size(i));
  return text + ") " + torch::headeronly::toString(tensor.scalar_type());
}

void check(const Tensor& x, const Tensor& y, double bandwidth) {
  STD_TORCH_CHECK(
      bandwidth > 0,
      "mmlaplacian::laplacian_kernel: expected a positive bandwidth, got ",
      bandwidth);
  const int64_t dim = x.dim();
  bool fits = dim >= 2 && y.dim() == dim && x.scalar_type() == y.scalar_type();
  for (int64_t i = 0; fits && i < dim; ++i)
    fits = i == dim - 2 || x.size(i) == y.size(i);
  STD_TORCH_CHECK(
      fits,
      "mmlaplacian::laplacian_kernel: expected x (..., N, D) and y (..., M, D) "
      "of one dtype with the same leading axes and D, got x ",
      describe(x), " and y ", describe(y));
}

// grad and kernel of the backward pass, whose other inputs are checked.
void check_pairs(const char* name, const Tensor& pairs, const Tensor& x,
                 const Tensor& y) {
  const int64_t dim = x.dim();
  bool fits = pairs.dim() == dim && pairs.scalar_type() == x.scalar_type() &&
              pairs.size(dim - 1) == y.size(dim - 2);
  for (int64_t i = 0; fits && i < dim - 1; ++i)
    fits = pairs.size(i) == x.size(i);
  STD_TORCH_CHECK(
      fits,
      "mmlaplacian::laplacian_kernel_backward: expected ", name,
      " (..., N, M) of x's dtype, got ", describe(pairs), " beside x ",
      describe(x), " and y ", describe(y));
}

// Calls run(T()) with the C++ type of a tensor's numbers.
template <typename Run>
void with_type(const Tensor& tensor, const Run& run) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return run(float());
    case ScalarType::Double: return run(double());
    case ScalarType::Half: return run(Half());
    case ScalarType::BFloat16: return run(BFloat16());
    default:
      STD_TORCH_CHECK(
          false,
          "mmlaplacian: expected float16, bfloat16, float32 or float64, got ",
          torch::headeronly::toString(tensor.scalar_type()));
  }
}

Tensor laplacian_kernel(Tensor x, Tensor y, double bandwidth) {
  check(x, y, bandwidth);
  const Sizes sizes(x, y);
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < x.dim() - 1; ++i) shape.push_back(x.size(i));
  shape.push_back(sizes.m);
  Tensor out = torch::stable::new_empty(x, shape);
  if (sizes.batch * sizes.n * sizes.m == 0) return out;
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const auto xs = reading<T>(x), ys = reading<T>(y);
    const auto outs = writing<T>(out);
    const auto kernel = chosen.load()->kernels<T>().forward;
    const bool past_caches =
        sizes.batch * sizes.n * sizes.m * int64_t(sizeof(T)) > kLargestCache;
    const int64_t parts = (sizes.n + kForwardTokens - 1) / kForwardTokens;
    const int64_t grain =
        1 + kForwardElements / (kForwardTokens * sizes.m * (sizes.d + 1));
    torch::stable::parallel_for(
        0, sizes.batch * parts, grain, [&](int64_t begin, int64_t end) {
          while (begin < end) {
            const int64_t b = begin / parts, part = begin % parts;
            const int64_t count = std::min(parts - part, end - begin);
            const int64_t first = part * kForwardTokens;
            auto tokens = xs[b];
            auto values = outs[b];
            tokens.data += first * tokens.row;
            values.data += first * values.row;
            kernel({tokens, ys[b], values,
                    std::min(count * kForwardTokens, sizes.n - first), sizes.m,
                    sizes.d, bandwidth, past_caches});
            begin += count;
          }
        });
  });
  return out;
}

std::tuple<Tensor, Tensor> laplacian_kernel_backward(
    Tensor grad, Tensor x, Tensor y, Tensor kernel, double bandwidth) {
  check(x, y, bandwidth);
  check_pairs("grad", grad, x, y);
  check_pairs("kernel", kernel, x, y);
  const Sizes sizes(x, y);
  std::vector<int64_t> x_shape, y_shape;
  for (int64_t i = 0; i < x.dim(); ++i) {
    x_shape.push_back(x.size(i));
    y_shape.push_back(y.size(i));
  }
  Tensor grad_x = torch::stable::new_empty(x, x_shape);
  Tensor grad_y = torch::stable::new_empty(y, y_shape);
  if (sizes.batch * sizes.n * sizes.m * sizes.d == 0) {
    torch::stable::zero_(grad_x);
    torch::stable::zero_(grad_y);
    return {grad_x, grad_y};
  }
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const auto grads = reading<T>(grad), xs = reading<T>(x), ys = reading<T>(y),
               kernels = reading<T>(kernel);
    const auto grad_xs = writing<T>(grad_x);
    T* grad_ys = static_cast<T*>(grad_y.mutable_data_ptr());
    const auto gradient = chosen.load()->kernels<T>().backward;
    const int64_t most = (sizes.n + kBackwardTokens - 1) / kBackwardTokens;
    const int64_t length = ((sizes.n + most - 1) / most + kGradientGroup - 1) /
                           kGradientGroup * kGradientGroup;
    const int64_t parts = (sizes.n + length - 1) / length;
    const int64_t size = sizes.m * sizes.d;
    std::vector<Real<T>> partial(sizes.batch * parts * size);
    torch::stable::parallel_for(
        0, sizes.batch * parts, 1, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            const int64_t b = task / parts;
            const int64_t first = task % parts * length;
            auto from = [&](auto matrix) {
              matrix.data += first * matrix.row;
              return matrix;
            };
            gradient({from(grads[b]), from(xs[b]), ys[b], from(kernels[b]),
                      from(grad_xs[b]), partial.data() + task * size,
                      std::min(length, sizes.n - first), sizes.m, sizes.d,
                      bandwidth});
          }
        });
    for (int64_t b = 0; b < sizes.batch; ++b) {
      Real<T>* total = partial.data() + b * parts * size;
      for (int64_t part = 1; part < parts; ++part)
        for (int64_t i = 0; i < size; ++i) total[i] += total[part * size + i];
      for (int64_t i = 0; i < size; ++i)
        grad_ys[b * size + i] = static_cast<T>(total[i]);
    }
  });
  return {grad_x, grad_y};
}

Tensor newton_schulz_inverse(
    Tensor matrix, int64_t num_iters, double ridge, std::string init) {
  const int64_t dim = matrix.dim();
  STD_TORCH_CHECK(
      dim >= 2 && matrix.size(dim - 1) == matrix.size(dim - 2) &&
          (init == "identity" || init == "transpose"),
      "mmlaplacian::newton_schulz_inverse: expected a matrix (..., M, M) and "
      "init 'identity' or 'transpose', got ",
      describe(matrix), " and '", init, "'");
  const int64_t m = matrix.size(dim - 1);
  int64_t batch = 1;
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < dim; ++i) {
    shape.push_back(matrix.size(i));
    if (i < dim - 2) batch *= matrix.size(i);
  }
  Tensor out = torch::stable::new_empty(matrix, shape);
  if (batch * m == 0) return out;
  with_type(matrix, [&](auto zero) {
    using T = decltype(zero);
    const auto matrices = reading<T>(matrix);
    T* inverses = static_cast<T*>(out.mutable_data_ptr());
    const auto inverse = chosen.load()->kernels<T>().inverse;
    torch::stable::parallel_for(
        0, batch, 1, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b)
            inverse({matrices[b], inverses + b * m * m, m, num_iters, ridge,
                     init == "identity"});
        });
  });
  return out;
}

}  // namespace
}  // namespace mmlaplacian

// Name of the variant in use.
extern "C" __attribute__((visibility("default"))) const char*
mmlaplacian_variant() {
  return mmlaplacian::chosen.load()->name;
}

// Use the named variant, or for "" the best; 0 where it does not run here.
extern "C" __attribute__((visibility("default"))) int mmlaplacian_choose(
    const char* name) {
  for (const auto* variant : mmlaplacian::variants())
    if (!*name || !std::strcmp(name, variant->name)) {
      mmlaplacian::chosen = variant;
      return 1;
    }
  return 0;
}

// About `count` float additions on one thread; returns how many.
extern "C" __attribute__((visibility("default"))) double mmlaplacian_additions(
    int64_t count) {
  return mmlaplacian::chosen.load()->additions(count);
}

STABLE_TORCH_LIBRARY_IMPL(mmlaplacian, CPU, library) {
  library.impl("laplacian_kernel", TORCH_BOX(&mmlaplacian::laplacian_kernel));
  library.impl("laplacian_kernel_backward",
               TORCH_BOX(&mmlaplacian::laplacian_kernel_backward));
  library.impl("newton_schulz_inverse",
               TORCH_BOX(&mmlaplacian::newton_schulz_inverse));
}
