// The Newton-Schulz inverse of one small matrix; one variant.
//
// X <- X (2I - P X) with P = matrix + ridge * I. The residual of the new X is
// the square of R = I - P X: once no row of R sums to more than the root of
// the rounding error, the update in work is the last that changes anything,
// and the loop ends early. Each matrix decides alone.
namespace VARIANT {

using mmlaplacian::InverseTask;

// The larger one; NaN stays, so that it is seen in the result.
template <typename Real>
INLINE Real larger(Real most, Real value) {
  return value > most || value != value ? value : most;
}

// c (m, m) = a b, rows `stride` apart, padded columns included.
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

template <typename T, typename Real>
void inverse(const InverseTask<T>& task) {
  const int64_t m = task.m;
  const int64_t stride = (m + 2 * kLanes<Real> - 1) / (2 * kLanes<Real>) *
                         (2 * kLanes<Real>);
  Buffer<Real> p(m * stride), x(m * stride), y(m * stride), next(m * stride);
  for (Real* zero : {static_cast<Real*>(p), static_cast<Real*>(x)})
    std::fill_n(zero, m * stride, Real(0));
  Real largest = 0;
  for (int64_t i = 0; i < m; ++i) {
    Real total = 0;
    for (int64_t j = 0; j < m; ++j) {
      Real value = static_cast<Real>(
          task.matrix.data[i * task.matrix.row + j * task.matrix.column]);
      if (i == j) value += static_cast<Real>(task.ridge);
      p[i * stride + j] = value;
      total += std::abs(value);
    }
    largest = larger(largest, total);
  }
  for (int64_t i = 0; i < m; ++i) {
    if (task.from_identity) x[i * stride + i] = 1 / largest;
    else
      for (int64_t j = 0; j < m; ++j)
        x[i * stride + j] =
            Real(1.8) / (largest * largest) * p[j * stride + i];
  }
  const Real small = std::sqrt(std::numeric_limits<Real>::epsilon()) / 2;
  Real *now = x, *then = next;
  for (int64_t step = 0; step < task.num_iters; ++step) {
    product<kBlockRows, Real>(p, now, y, m, m, stride);
    Real residual = 0;
    for (int64_t i = 0; i < m; ++i) {
      Real total = 0;
      for (int64_t j = 0; j < m; ++j) {
        Real value = -y[i * stride + j];
        if (i == j) value += 1;
        total += std::abs(value);
        // The factor 2I - P X = I + R.
        y[i * stride + j] = i == j ? value + 1 : value;
      }
      residual = larger(residual, total);
    }
    product<kBlockRows, Real>(now, y, then, m, m, stride);
    std::swap(now, then);
    if (residual < small) break;
  }
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < m; ++j)
      task.inverse[i * m + j] = static_cast<T>(now[i * stride + j]);
}

}  // namespace VARIANT
