// Both gradients of the Laplacian kernel in one pass over its elements.
//
// A vector holds neighbouring coordinates. With
//   weight = -grad * kernel / bandwidth,
// the gradient of x sums weight * sign(x - y) over the landmarks, and the one
// of y subtracts the same terms over the tokens. Letters as in forward.h.
#ifndef MMLAPLACIAN_BACKWARD_TASK
#define MMLAPLACIAN_BACKWARD_TASK

namespace mmlaplacian {

// Tokens per group. Sixteen rows of 49 elements, as of a kernel matrix, are
// whole cache lines; ranges of tokens start at multiples of it.
constexpr int64_t kTokenGroup = 16;

// A range of n tokens of one image and head: x and grad_x (n, d), y (m, d),
// grad and kernel (n, m). grad_y (m, d) is the contiguous partial sum of these
// tokens.
template <typename T>
struct BackwardTask {
  Matrix<const T> grad, x, y, kernel;
  Matrix<T> grad_x;
  RealOf<T>* grad_y;
  int64_t n, m, d;
  double bandwidth;
};

}  // namespace mmlaplacian

#endif

#include "common/tiles.h"

namespace mmlaplacian::VARIANT {

// Vectors of coordinates in a block of sums that stay in registers.
constexpr int kGradientVectors = VECTOR_BYTES == 64 ? 2 : 1;

// AVX-512 clamps in one instruction, so that an element takes four of them with
// both sums instead of five: weight * sign(x - y) equals
// weight / kClampLimit * clamp(x - y, kClampLimit) if all coordinates are 0 or
// at least kSmallestCoordinate, because their differences are then 0 or at
// least kClampLimit.
constexpr bool kHasClamp = VECTOR_BYTES == 64;
template <typename Real>
constexpr Real kClampLimit = std::is_same_v<Real, float> ? 0x1p-64 : 0x1p-512;
template <typename Real>
constexpr Real kSmallestCoordinate =
    kClampLimit<Real> / std::numeric_limits<Real>::epsilon();

// Checks that the clamp gives exact signs: no coordinate is too small, and no
// weight divided by kClampLimit is infinite or NaN.
template <typename Real>
class SignCheck {
 public:
  INLINE void add_coordinates(Vector<Real> x) {
    const auto size = twice_bits(x) - 1;  // 0 becomes the largest.
    smallest_ = size < smallest_ ? size : smallest_;
  }
  INLINE void add_weights(Vector<Real> w) {
    zero_or_nan_ = zero_or_nan_ + w * Real(0);
  }
  INLINE bool passed() const {
    const auto bound = twice_bits(splat(kSmallestCoordinate<Real>)) - 1;
    const auto mask = (smallest_ < bound) | (zero_or_nan_ != zero_or_nan_);
    bool failed = false;
    for (int lane = 0; lane < kLanes<Real>; ++lane) failed |= mask[lane] != 0;
    return !failed;
  }

 private:
  // Drops the sign bit; the order of these integers is that of the sizes.
  static INLINE Unsigned<Real> twice_bits(Vector<Real> x) {
    return (Unsigned<Real>)x + (Unsigned<Real>)x;
  }
  Unsigned<Real> smallest_ = ~Unsigned<Real>{};
  Vector<Real> zero_or_nan_ = {};
};

// Rows of a group of tokens: x and grad_x (tokens, padded d), weight
// (tokens, m), contiguous.
template <typename Real>
struct GradientRows {
  const Real* x;
  int64_t x_row;
  Real* grad_x;
  int64_t grad_x_row;
  Real* weight;
};

// y and grad_y (m, padded d), with rows `stride` apart.
template <typename Real>
struct GradientLandmarks {
  const Real* y;
  Real* grad_y;
  int64_t m, d, stride;
};

// Loads the landmarks, checks them and sets their gradients to 0.
template <typename T, typename Real>
INLINE SignCheck<Real> load_landmarks(
    const BackwardTask<T>& task, const GradientLandmarks<Real>& landmarks,
    Real* y) {
  SignCheck<Real> check;
  for (int64_t j = 0; j < task.m; ++j)
    for (int64_t k = 0; k < landmarks.d; k += kLanes<Real>) {
      const auto part =
          load_part<Real, T>(task.y.at(j, k), task.y.column, task.d - k);
      check.add_coordinates(part);
      store<Real>(y + j * landmarks.stride + k, part);
      store<Real>(landmarks.grad_y + j * landmarks.stride + k, Vector<Real>{});
    }
  return check;
}

// Checks the coordinates of `count` tokens, and copies them to `copy` unless
// that is null.
template <typename T, typename Real>
INLINE void load_tokens(const BackwardTask<T>& task, int64_t first,
                        int64_t count, int64_t d, Real* copy,
                        SignCheck<Real>& check) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t k = 0; k < d; k += kLanes<Real>) {
      const auto part = load_part<Real, T>(
          task.x.at(first + i, k), task.x.column, task.d - k);
      check.add_coordinates(part);
      if (copy) store<Real>(copy + i * d + k, part);
    }
}

// Computes weight = grad * kernel * scale for `count` tokens, and checks it.
template <typename T, typename Real>
INLINE void compute_weights(const BackwardTask<T>& task, int64_t first,
                            int64_t count, Real scale, Real* weight,
                            SignCheck<Real>& check) {
  const auto grad = task.grad.from_row(first);
  const auto kernel = task.kernel.from_row(first);
  int64_t m = task.m;
  if (grad.row == m && kernel.row == m && grad.column == 1 &&
      kernel.column == 1) {
    // Contiguous rows are one long row.
    m *= count;
    count = 1;
  }
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < m; j += kLanes<Real>) {
      auto part = [&](const Matrix<const T>& from) INLINE_LAMBDA {
        return load_part<Real, T>(from.at(i, j), from.column, m - j);
      };
      const auto value = part(grad) * part(kernel) * scale;
      check.add_weights(value);
      store<Real>(weight + i * m + j, value);
    }
}

// Computes both gradients of kTokens tokens and all landmarks, for kVectors
// vectors of coordinates from `column` on. The sums over the landmarks stay in
// registers. Calls prefetch(i) when i / kTokens of the landmarks are done.
// kSignByClamp: the weights are divided by kClampLimit.
template <bool kSignByClamp, int kTokens, int kVectors, typename Real,
          typename PrefetchFn>
INLINE void gradient_block(
    const GradientRows<Real>& rows, const GradientLandmarks<Real>& landmarks,
    int64_t column, const PrefetchFn& prefetch) {
  Vector<Real> token[kTokens][kVectors], sum[kTokens][kVectors] = {};
#pragma GCC unroll 8
  for (int n = 0; n < kTokens; ++n)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      token[n][v] =
          load<Real>(rows.x + n * rows.x_row + column + v * kLanes<Real>);
  const int64_t m = landmarks.m, stride = landmarks.stride;
  Real* weight = rows.weight;
  const Real* y = landmarks.y + column;
  Real* grad_y = landmarks.grad_y + column;
  for (int i = 0; i < kTokens; ++i) {
    prefetch(i);
    const int64_t end = m * (i + 1) / kTokens;
    for (int64_t j = m * i / kTokens; j < end; ++j) {
      Vector<Real> landmark[kVectors], total[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        landmark[v] = load<Real>(y + v * kLanes<Real>);
        total[v] = load<Real>(grad_y + v * kLanes<Real>);
      }
#pragma GCC unroll 8
      for (int n = 0; n < kTokens; ++n) {
        Real* factor = weight + n * m;
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (kSignByClamp) {
            const auto clamped =
                clamp(token[n][v] - landmark[v], kClampLimit<Real>);
            sum[n][v] = sum[n][v] + clamped * splat_memory(factor);
            total[v] = total[v] + clamped * splat_memory(factor);
          } else {
            const auto part =
                signed_weight<Real>(splat(*factor), token[n][v], landmark[v]);
            sum[n][v] = sum[n][v] + part;
            total[v] = accumulate<Real>(total[v], part);
          }
        }
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        store<Real>(grad_y + v * kLanes<Real>, total[v]);
      ++weight;
      y += stride;
      grad_y += stride;
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kTokens; ++n)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store<Real>(rows.grad_x + n * rows.grad_x_row + column +
                      v * kLanes<Real>,
                  sum[n][v]);
}

// Computes both gradients of `count` tokens, a few at a time, and all columns.
// Calls prefetch(i) once for each token i.
template <bool kSignByClamp, typename Real, typename PrefetchFn>
INLINE void gradient_rows(GradientRows<Real> rows,
                          const GradientLandmarks<Real>& landmarks,
                          int64_t count, const PrefetchFn& prefetch) {
  constexpr int kTokens = 4;
  int64_t first = 0;
  auto block = [&](auto tokens) INLINE_LAMBDA {
    constexpr int kCount = decltype(tokens)::value;
    int64_t column = 0;
    auto prefetch_once = [&](int64_t i) INLINE_LAMBDA {
      if (column == 0) prefetch(first + i);
    };
    if constexpr (kGradientVectors == 2)
      for (; column + kLanes<Real> < landmarks.d; column += 2 * kLanes<Real>)
        gradient_block<kSignByClamp, kCount, 2>(
            rows, landmarks, column, prefetch_once);
    for (; column < landmarks.d; column += kLanes<Real>)
      gradient_block<kSignByClamp, kCount, 1>(
          rows, landmarks, column, prefetch_once);
    first += kCount;
    rows.x += kCount * rows.x_row;
    rows.grad_x += kCount * rows.grad_x_row;
    rows.weight += kCount * landmarks.m;
  };
  while (first + kTokens <= count)
    block(std::integral_constant<int, kTokens>());
  while (first < count) block(std::integral_constant<int, 1>());
}

// Computes both gradients of a group of `count` tokens from `first` on. Signs
// come from the clamp if the check passes with the weights included.
template <typename T, typename Real>
INLINE void gradient_group(const BackwardTask<T>& task, int64_t first,
                           int64_t count, const GradientRows<Real>& rows,
                           const GradientLandmarks<Real>& landmarks,
                           SignCheck<Real> check) {
  const int64_t next = first + count;
  auto next_group = [&](auto matrix, int64_t columns) INLINE_LAMBDA {
    return Prefetch<false, const T>(
        matrix.from_row(std::min(next, task.n - 1)),
        std::min(count, task.n - next), columns);
  };
  const auto x = next_group(task.x, task.d);
  const auto grad = next_group(task.grad, task.m);
  const auto kernel = next_group(task.kernel, task.m);
  auto prefetch = [&](int64_t i) INLINE_LAMBDA {
    x(i);
    grad(i);
    kernel(i);
  };
  const Real scale = scale_of<Real>(-1, task.bandwidth);
  if constexpr (kHasClamp) {
    compute_weights<T, Real>(
        task, first, count, scale / kClampLimit<Real>, rows.weight, check);
    if (check.passed())
      return gradient_rows<true>(rows, landmarks, count, prefetch);
  }
  compute_weights<T, Real>(task, first, count, scale, rows.weight, check);
  gradient_rows<false>(rows, landmarks, count, prefetch);
}

// Computes both gradients of one task.
template <typename T>
void backward(const BackwardTask<T>& task) {
  using Real = RealOf<T>;
  const int64_t d = padded<Real>(task.d);
  // Each row of y is followed by its gradient. In separate memory, a read whose
  // distance from a recent write is a multiple of 4 KB would wait for it.
  const int64_t stride = 2 * d;
  Buffer<Real> y(task.m * stride);
  const GradientLandmarks<Real> landmarks{y, y + d, task.m, d, stride};
  const SignCheck<Real> landmark_check =
      load_landmarks<T, Real>(task, landmarks, y);
  // Whole vectors are read and written in place; other rows are copied.
  const bool in_place = std::is_same_v<T, Real> && task.d == d &&
                        task.x.column == 1 && task.grad_x.column == 1;
  Buffer<Real> weight(kTokenGroup * task.m + kLanes<Real>);
  const int64_t copied = in_place ? 0 : kTokenGroup * d;
  Buffer<Real> x(copied), grad_x(copied);
  for (int64_t first = 0; first < task.n; first += kTokenGroup) {
    const int64_t count = std::min(kTokenGroup, task.n - first);
    GradientRows<Real> rows{x, d, grad_x, d, weight};
    if constexpr (std::is_same_v<T, Real>)
      if (in_place)
        rows = {task.x.at(first, 0), task.x.row, task.grad_x.at(first, 0),
                task.grad_x.row, weight};
    SignCheck<Real> check = landmark_check;
    load_tokens<T, Real>(
        task, first, count, d, in_place ? nullptr : static_cast<Real*>(x),
        check);
    gradient_group<T, Real>(task, first, count, rows, landmarks, check);
    if (!in_place)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = 0; k < task.d; k += kLanes<Real>)
          store_part<Real, T>(task.grad_x.at(first + i, k), task.grad_x.column,
                              task.d - k, load<Real>(grad_x + i * d + k));
  }
  for (int64_t j = 0; j < task.m; ++j)
    for (int64_t k = 0; k < task.d; ++k)
      task.grad_y[j * task.d + k] = Real(0) - landmarks.grad_y[j * stride + k];
}

}  // namespace mmlaplacian::VARIANT
