// What the operators hand to the CPU variants.
#pragma once

#include <cstdint>

namespace mmlaplacian {

// A matrix in memory; strides count elements.
template <typename T>
struct Matrix {
  T* data;
  int64_t row;
  int64_t column;
};

// One image and head: x (n, d), y (m, d), kernel (n, m). past_caches: the
// whole result is too large for them.
template <typename T>
struct ForwardTask {
  Matrix<const T> x, y;
  Matrix<T> kernel;
  int64_t n, m, d;
  double bandwidth;
  bool past_caches;
};

// Tokens whose gradients are made at a time. Sixteen rows of 49 numbers, as of
// a kernel matrix, are whole cache lines; ranges of tokens begin at multiples.
constexpr int64_t kGradientGroup = 16;

// As above for a range of n tokens; grad_y (m, d) is a partial sum, contiguous.
template <typename T, typename Real>
struct BackwardTask {
  Matrix<const T> grad, x, y, kernel;
  Matrix<T> grad_x;
  Real* grad_y;
  int64_t n, m, d;
  double bandwidth;
};

// matrix (m, m) to its inverse, contiguous.
template <typename T>
struct InverseTask {
  Matrix<const T> matrix;
  T* inverse;
  int64_t m;
  int64_t num_iters;
  double ridge;
  bool from_identity;
};

}  // namespace mmlaplacian
