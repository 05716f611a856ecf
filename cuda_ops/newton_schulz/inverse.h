// The Newton-Schulz inverse of one small matrix.
//
// X <- X (2I - P X) with P = matrix + ridge * I. The residual R = I - P X of
// the next X is the square of the present one. Once no row of R sums to more
// than half the root of the rounding error, the update in progress is the last
// one that changes anything, and the loop ends. Each matrix decides alone.
#include "common/tiles.h"

namespace mmlaplacian::VARIANT {

// Returns the larger value. NaN is kept, so that it shows in the result.
template <typename Real>
INLINE Real larger(Real most, Real value) {
  return value > most || value != value ? value : most;
}

// Computes kRows rows of c = a b, for (m, m) matrices with rows `stride` apart.
// Columns beyond m are computed, too.
template <int kRows, typename Real>
INLINE void product_rows(const Real* a, const Real* b, Real* c, int64_t m,
                         int64_t stride) {
  constexpr int kVectors = 2;
  for (int64_t column = 0; column < stride;
       column += kVectors * kLanes<Real>) {
    Vector<Real> sum[kRows][kVectors] = {};
    for (int64_t k = 0; k < m; ++k) {
      const Real* row = b + k * stride + column;
      const auto left = load<Real>(row), right = load<Real>(row + kLanes<Real>);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const auto factor = splat(a[i * stride + k]);
        sum[i][0] += factor * left;
        sum[i][1] += factor * right;
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      store<Real>(c + i * stride + column, sum[i][0]);
      store<Real>(c + i * stride + column + kLanes<Real>, sum[i][1]);
    }
  }
}

// Computes `rows` rows of c = a b, kRows at a time and then fewer.
template <int kRows, typename Real>
void product(const Real* a, const Real* b, Real* c, int64_t rows, int64_t m,
             int64_t stride) {
  if constexpr (kRows > 0) {
    for (; rows >= kRows; rows -= kRows) {
      product_rows<kRows, Real>(a, b, c, m, stride);
      a += kRows * stride;
      c += kRows * stride;
    }
    product<kRows - 1, Real>(a, b, c, rows, m, stride);
  }
}

// Loads P = matrix + ridge * I and returns its largest absolute row sum.
template <typename T, typename Real>
INLINE Real load_matrix(Matrix<const T> matrix, int64_t m, double ridge, Real* p,
                 int64_t stride) {
  Real largest = 0;
  for (int64_t i = 0; i < m; ++i) {
    Real total = 0;
    for (int64_t j = 0; j < m; ++j) {
      Real value = static_cast<Real>(*matrix.at(i, j));
      if (i == j) value += static_cast<Real>(ridge);
      p[i * stride + j] = value;
      total += std::abs(value);
    }
    largest = larger(largest, total);
  }
  return largest;
}

// Replaces P X by 2I - P X and returns the residual: the largest absolute row
// sum of I - P X.
template <typename Real>
INLINE Real subtract_from_identity(Real* y, int64_t m, int64_t stride) {
  Real residual = 0;
  for (int64_t i = 0; i < m; ++i) {
    Real total = 0;
    for (int64_t j = 0; j < m; ++j) {
      Real value = -y[i * stride + j];
      if (i == j) value += 1;
      total += std::abs(value);
      y[i * stride + j] = i == j ? value + 1 : value;
    }
    residual = larger(residual, total);
  }
  return residual;
}

// Computes the inverse of a matrix (m, m) into contiguous memory.
template <typename T>
void inverse(Matrix<const T> matrix, T* result, int64_t m, int64_t num_iters,
             double ridge, bool from_identity) {
  using Real = RealOf<T>;
  const int64_t stride = (m + 2 * kLanes<Real> - 1) / (2 * kLanes<Real>) *
                         (2 * kLanes<Real>);
  Buffer<Real> p(m * stride), x(m * stride), y(m * stride), z(m * stride);
  Real *current = x, *next = z;
  std::fill_n(static_cast<Real*>(p), m * stride, Real(0));
  std::fill_n(current, m * stride, Real(0));
  const Real largest = load_matrix<T, Real>(matrix, m, ridge, p, stride);
  for (int64_t i = 0; i < m; ++i) {
    if (from_identity) current[i * stride + i] = 1 / largest;
    else
      for (int64_t j = 0; j < m; ++j)
        current[i * stride + j] =
            Real(1.8) / (largest * largest) * p[j * stride + i];
  }
  const Real tolerance = std::sqrt(std::numeric_limits<Real>::epsilon()) / 2;
  for (int64_t step = 0; step < num_iters; ++step) {
    product<kBlockRows, Real>(p, current, y, m, m, stride);
    const Real residual = subtract_from_identity<Real>(y, m, stride);
    product<kBlockRows, Real>(current, y, next, m, m, stride);
    std::swap(current, next);
    if (residual < tolerance) break;
  }
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < m; ++j)
      result[i * m + j] = static_cast<T>(current[i * stride + j]);
}

}  // namespace mmlaplacian::VARIANT
