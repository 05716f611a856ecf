// Tensors of PyTorch's stable ABI as the kernels see them.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace mmlaplacian {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::stable::Tensor;

// Type of the sums: double for double, float for every other dtype.
template <typename T>
using RealOf =
    std::conditional_t<std::is_same_v<T, double>, double, float>;

// A matrix in memory; the strides count elements.
template <typename T>
struct Matrix {
  T* data;
  int64_t row;
  int64_t column;

  T* at(int64_t i, int64_t j) const { return data + i * row + j * column; }

  // The same columns of the rows from `first` on.
  Matrix from_row(int64_t first) const {
    return {data + first * row, row, column};
  }
};

// The matrices of a (..., rows, columns) tensor, by flat leading index.
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
Batch<const T> input_batch(const Tensor& tensor) {
  return {tensor, static_cast<const T*>(tensor.const_data_ptr())};
}

template <typename T>
Batch<T> output_batch(const Tensor& tensor) {
  return {tensor, static_cast<T*>(tensor.mutable_data_ptr())};
}

inline std::vector<int64_t> shape_of(const Tensor& tensor) {
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < tensor.dim(); ++i) shape.push_back(tensor.size(i));
  return shape;
}

// Number of matrices in a (..., rows, columns) tensor.
inline int64_t batch_size(const Tensor& tensor) {
  int64_t count = 1;
  for (int64_t i = 0; i < tensor.dim() - 2; ++i) count *= tensor.size(i);
  return count;
}

// Shape and dtype for error messages, such as "(2, 49, 32) Float".
inline std::string describe(const Tensor& tensor) {
  std::string text = "(";
  for (int64_t i = 0; i < tensor.dim(); ++i)
    text += (i ? ", " : "") + std::to_string(tensor.size(i));
  return text + ") " + torch::headeronly::toString(tensor.scalar_type());
}

// Calls run(T()) with the C++ type of the tensor's elements.
template <typename Run>
void with_element_type(const Tensor& tensor, const Run& run) {
  using torch::headeronly::ScalarType;
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

}  // namespace mmlaplacian
