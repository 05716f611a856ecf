// CPU function of the Newton-Schulz inverse for PyTorch's dispatcher.
#define KERNELS "newton_schulz/inverse.h"
#include "common/foreach_variant.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

namespace mmlaplacian {
namespace {

Tensor newton_schulz_inverse(
    Tensor matrix, int64_t num_iters, double ridge, std::string init) {
  const int64_t dim = matrix.dim();
  STD_TORCH_CHECK(
      dim >= 2 && matrix.size(dim - 1) == matrix.size(dim - 2) &&
          (init == "identity" || init == "transpose"),
      "mmlaplacian::newton_schulz_inverse: expected a matrix (..., M, M) and "
      "init 'identity' or 'transpose', got ",
      describe(matrix), " and '", init, "'");
  const int64_t m = matrix.size(dim - 1), batch = batch_size(matrix);
  Tensor out = torch::stable::new_empty(matrix, shape_of(matrix));
  if (batch * m == 0) return out;
  with_element_type(matrix, [&](auto zero) {
    using T = decltype(zero);
    const auto matrices = input_batch<T>(matrix);
    T* inverses = static_cast<T*>(out.mutable_data_ptr());
    const auto inverse = SELECT_VARIANT(inverse<T>);
    torch::stable::parallel_for(
        0, batch, 1, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b)
            inverse(matrices[b], inverses + b * m * m, m, num_iters, ridge,
                    init == "identity");
        });
  });
  return out;
}

}  // namespace
}  // namespace mmlaplacian

STABLE_TORCH_LIBRARY_IMPL(mmlaplacian, CPU, library) {
  library.impl("newton_schulz_inverse",
               TORCH_BOX(&mmlaplacian::newton_schulz_inverse));
}
