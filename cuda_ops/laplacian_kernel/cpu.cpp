// CPU functions of the Laplacian kernel for PyTorch's dispatcher.
#define KERNELS "laplacian_kernel/forward.h"
#define MORE_KERNELS "laplacian_kernel/backward.h"
#include "common/foreach_variant.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>

namespace mmlaplacian {
namespace {

// A thread gets pieces of kForwardTokens tokens with at least kForwardElements
// elements (n, m, d) in total; fewer are not worth starting it.
constexpr int64_t kForwardTokens = 48;
constexpr int64_t kForwardElements = 1 << 20;

// Largest sum over tokens. Its length does not depend on the number of threads,
// so the results do not either.
constexpr int64_t kBackwardTokens = 1024;

// Results above this size in bytes leave the caches before they are read.
constexpr int64_t kStreamingBytes = 4 << 20;

struct Sizes {
  int64_t batch, n, m, d;
  Sizes(const Tensor& x, const Tensor& y)
      : batch(batch_size(x)),
        n(x.size(x.dim() - 2)),
        m(y.size(y.dim() - 2)),
        d(x.size(x.dim() - 1)) {}
};

void check_inputs(const Tensor& x, const Tensor& y, double bandwidth) {
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

// Checks `pairs`, the gradient or the kernel, against inputs that are checked.
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

Tensor laplacian_kernel(Tensor x, Tensor y, double bandwidth) {
  check_inputs(x, y, bandwidth);
  const Sizes sizes(x, y);
  std::vector<int64_t> shape = shape_of(x);
  shape.back() = sizes.m;
  Tensor out = torch::stable::new_empty(x, shape);
  if (sizes.batch * sizes.n * sizes.m == 0) return out;
  with_element_type(x, [&](auto zero) {
    using T = decltype(zero);
    const auto xs = input_batch<T>(x), ys = input_batch<T>(y);
    const auto outs = output_batch<T>(out);
    const auto forward = SELECT_VARIANT(forward<T>);
    const bool streaming =
        sizes.batch * sizes.n * sizes.m * int64_t(sizeof(T)) > kStreamingBytes;
    const int64_t parts = (sizes.n + kForwardTokens - 1) / kForwardTokens;
    const int64_t grain =
        1 + kForwardElements / (kForwardTokens * sizes.m * (sizes.d + 1));
    torch::stable::parallel_for(
        0, sizes.batch * parts, grain, [&](int64_t begin, int64_t end) {
          while (begin < end) {
            const int64_t b = begin / parts, part = begin % parts;
            const int64_t count = std::min(parts - part, end - begin);
            const int64_t first = part * kForwardTokens;
            forward({xs[b].from_row(first), ys[b], outs[b].from_row(first),
                     std::min(count * kForwardTokens, sizes.n - first),
                     sizes.m, sizes.d, bandwidth, streaming});
            begin += count;
          }
        });
  });
  return out;
}

// Adds the partial sums of each image and head in order, and writes them as T.
template <typename T>
void add_partial_sums(RealOf<T>* partial, int64_t batch, int64_t parts,
                      int64_t size, T* out) {
  for (int64_t b = 0; b < batch; ++b) {
    RealOf<T>* total = partial + b * parts * size;
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = 0; i < size; ++i) total[i] += total[part * size + i];
    for (int64_t i = 0; i < size; ++i)
      out[b * size + i] = static_cast<T>(total[i]);
  }
}

std::tuple<Tensor, Tensor> laplacian_kernel_backward(
    Tensor grad, Tensor x, Tensor y, Tensor kernel, double bandwidth) {
  check_inputs(x, y, bandwidth);
  check_pairs("grad", grad, x, y);
  check_pairs("kernel", kernel, x, y);
  const Sizes sizes(x, y);
  Tensor grad_x = torch::stable::new_empty(x, shape_of(x));
  Tensor grad_y = torch::stable::new_empty(y, shape_of(y));
  if (sizes.batch * sizes.n * sizes.m * sizes.d == 0) {
    torch::stable::zero_(grad_x);
    torch::stable::zero_(grad_y);
    return {grad_x, grad_y};
  }
  with_element_type(x, [&](auto zero) {
    using T = decltype(zero);
    const auto grads = input_batch<T>(grad), xs = input_batch<T>(x),
               ys = input_batch<T>(y), kernels = input_batch<T>(kernel);
    const auto grad_xs = output_batch<T>(grad_x);
    const auto backward = SELECT_VARIANT(backward<T>);
    const int64_t most = (sizes.n + kBackwardTokens - 1) / kBackwardTokens;
    const int64_t length = ((sizes.n + most - 1) / most + kTokenGroup - 1) /
                           kTokenGroup * kTokenGroup;
    const int64_t parts = (sizes.n + length - 1) / length;
    const int64_t size = sizes.m * sizes.d;
    std::vector<RealOf<T>> partial(sizes.batch * parts * size);
    torch::stable::parallel_for(
        0, sizes.batch * parts, 1, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            const int64_t b = task / parts;
            const int64_t first = task % parts * length;
            backward({grads[b].from_row(first), xs[b].from_row(first), ys[b],
                      kernels[b].from_row(first), grad_xs[b].from_row(first),
                      partial.data() + task * size,
                      std::min(length, sizes.n - first), sizes.m, sizes.d,
                      bandwidth});
          }
        });
    add_partial_sums(partial.data(), sizes.batch, parts, size,
                     static_cast<T*>(grad_y.mutable_data_ptr()));
  });
  return {grad_x, grad_y};
}

}  // namespace
}  // namespace mmlaplacian

STABLE_TORCH_LIBRARY_IMPL(mmlaplacian, CPU, library) {
  library.impl("laplacian_kernel", TORCH_BOX(&mmlaplacian::laplacian_kernel));
  library.impl("laplacian_kernel_backward",
               TORCH_BOX(&mmlaplacian::laplacian_kernel_backward));
}
