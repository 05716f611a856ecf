// The Laplacian kernel and its gradients, tile by tile; one variant.
//
// A vector holds as many tokens as it has lanes, so that every landmark
// coordinate is read once for all of them and no sum runs across lanes.
// Rows come in and results go out through transposed squares. Letters: n
// tokens, m landmarks, d coordinates.
#include "vectors.h"

namespace VARIANT {

using mmlaplacian::BackwardTask;
using mmlaplacian::ForwardTask;
using mmlaplacian::Matrix;

// Landmarks that are in work at a time: they and a tile stay in the L1 cache.
constexpr int64_t kLandmarks = 64;

constexpr double kLog2E = 1.4426950408889634;

template <typename Real>
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : memory_(static_cast<Real*>(
            ::operator new(count * sizeof(Real), std::align_val_t(64)))) {}
  ~Buffer() { ::operator delete(memory_, std::align_val_t(64)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator Real*() const { return memory_; }

 private:
  Real* memory_;
};

template <typename Real>
int64_t padded(int64_t count) {
  return (count + kLanes<Real> - 1) / kLanes<Real> * kLanes<Real>;
}

// Asks for rows that are needed when the work at hand is done, a few at a time:
// all at once would wait for one another. kToWrite: as memory to overwrite.
template <bool kToWrite, typename T>
class Prefetch {
 public:
  Prefetch(Matrix<T> rows, int64_t count, int64_t columns)
      : rows_(rows), count_(rows.column == 1 ? count : 0), columns_(columns) {}

  // Row i, if there is one.
  INLINE void operator()(int64_t i) const {
    if (i < count_)
      for (int64_t j = 0; j < columns_; j += 64 / int64_t(sizeof(T)))
        __builtin_prefetch(rows_.data + i * rows_.row + j, kToWrite);
  }

  // The rows that belong to the parts [begin, end) of `parts`.
  INLINE void operator()(int64_t begin, int64_t end, int64_t parts) const {
    for (int64_t i = count_ * begin / parts; i < count_ * end / parts; ++i)
      (*this)(i);
  }

 private:
  Matrix<T> rows_;
  int64_t count_, columns_;
};

// Up to a vector of neighbours in a row; missing ones are 0.
template <typename Real, typename T>
INLINE Vector<Real> load_part(const T* from, int64_t step, int64_t count) {
  if constexpr (std::is_same_v<T, Real>) {
    if (step == 1 && count >= kLanes<Real>) return load<Real>(from);
    if (step == 1) return load_first<Real>(from, count);
  }
  alignas(64) Real part[kLanes<Real>] = {};
  if (step == 1 && count >= kLanes<Real>) {
    for (int i = 0; i < kLanes<Real>; ++i) part[i] = static_cast<Real>(from[i]);
  } else {
    count = std::min<int64_t>(count, kLanes<Real>);
    for (int64_t i = 0; i < count; ++i)
      part[i] = static_cast<Real>(from[i * step]);
  }
  return load<Real>(part);
}

template <typename Real, typename T>
INLINE void store_part(
    T* to, int64_t step, int64_t count, Vector<Real> value) {
  if constexpr (std::is_same_v<T, Real>) {
    if (step == 1 && count >= kLanes<Real>) return store<Real>(to, value);
  }
  alignas(64) Real part[kLanes<Real>];
  store<Real>(part, value);
  if (step == 1 && count >= kLanes<Real>) {
    for (int i = 0; i < kLanes<Real>; ++i) to[i] = static_cast<T>(part[i]);
  } else {
    count = std::min<int64_t>(count, kLanes<Real>);
    for (int64_t i = 0; i < count; ++i)
      to[i * step] = static_cast<T>(part[i]);
  }
}

// tile[column][row] = from(row, column); rows after the last repeat it.
template <int kVectors, typename Real, typename From>
INLINE void fill_tile(Real* tile, int64_t rows, int64_t columns, From from) {
  constexpr int kRows = kVectors * kLanes<Real>;
  for (int64_t column = 0; column < columns; column += kLanes<Real>)
    for (int v = 0; v < kVectors; ++v) {
      Vector<Real> square[kLanes<Real>];
      for (int i = 0; i < kLanes<Real>; ++i)
        square[i] = from(
            std::min<int64_t>(v * kLanes<Real> + i, rows - 1), column);
      transpose<Real>(square);
      for (int i = 0; i < kLanes<Real>; ++i)
        store<Real>(tile + (column + i) * kRows + v * kLanes<Real>, square[i]);
    }
}

// to(row, column) = tile[column][row], in the order of memory.
template <int kVectors, typename Real, typename T>
INLINE void empty_tile(
    const Real* tile, Matrix<T> to, int64_t rows, int64_t columns) {
  constexpr int kRows = kVectors * kLanes<Real>;
  for (int64_t first = 0; first < rows; first += kLanes<Real>) {
    const int64_t count = std::min<int64_t>(kLanes<Real>, rows - first);
    T* corner = to.data + first * to.row;
    int64_t column = 0;
    // One landmark more than a multiple of the lanes, as in 49, is no square.
    for (; column + 1 < columns; column += kLanes<Real>) {
      Vector<Real> square[kLanes<Real>];
      for (int i = 0; i < kLanes<Real>; ++i)
        square[i] = load<Real>(
            tile + std::min<int64_t>(column + i, columns - 1) * kRows + first);
      transpose<Real>(square);
      for (int i = 0; i < kLanes<Real> && i < count; ++i)
        store_part<Real, T>(corner + i * to.row + column * to.column,
                            to.column, columns - column, square[i]);
    }
    if (column < columns)
      for (int64_t i = 0; i < count; ++i)
        corner[i * to.row + column * to.column] =
            static_cast<T>(tile[column * kRows + first + i]);
  }
}

// Copy to memory that no cache will hold until it is read: going past them
// saves reading it first. `to` is aligned to a cache line.
template <typename Real>
INLINE void copy_past_caches(const Real* from, Real* to, int64_t count) {
  int64_t i = 0;
#if VECTOR_BYTES == 64
  for (; i + kLanes<Real> <= count; i += kLanes<Real>)
    _mm512_stream_ps(reinterpret_cast<float*>(to + i),
                     (__m512)load<Real>(from + i));
#endif
  std::copy(from + i, from + count, to + i);
}

// The landmarks as rows of Real: themselves where they are that already.
template <typename Real, typename T>
Matrix<const Real> rows_of(
    Matrix<const T> y, int64_t m, int64_t d, std::unique_ptr<Real[]>& memory) {
  if constexpr (std::is_same_v<T, Real>) {
    if (y.column == 1) return y;
  }
  memory.reset(new Real[m * d]);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < d; ++j)
      memory[i * d + j] = static_cast<Real>(y.data[i * y.row + j * y.column]);
  return {memory.get(), d, 1};
}

// sum |x - y| / 2 = sum max(x, y) - sum x / 2 - sum y / 2 takes two
// instructions an element, not three, but rounds by the sizes of x and y, not
// by |x - y|. Hence few coordinates at a time, and rows whose L1 norm exceeds
// sqrt(d) bandwidths, or is not finite, are subtracted (all rows, where a
// landmark is one): what is left is about 1e-6 of a value at any d. All sums go
// in one order: rounding keeps the order of numbers, so that equal rows have
// distance 0 and no distance is below it.
constexpr int64_t kSummed = 8;

template <typename Real>
Real largest_norm(int64_t d, double bandwidth) {
  // Sums of two rows must not overflow.
  const double limit = std::numeric_limits<Real>::max() / 4;
  return static_cast<Real>(std::min(std::sqrt(d) * bandwidth, limit));
}

// sums[j / kSummed][row], stride numbers apart: minus half the sums of a tile's
// rows, NaN at first where a norm exceeds `limit`. Returns how many do not.
template <int kVectors, typename Real>
INLINE int sum_rows(const Real* tile, int64_t d, Real limit, Real* sums,
                    int64_t stride) {
  Vector<Real> norm[kVectors] = {};
  for (int64_t j = 0; j < d; j += kSummed) {
    Vector<Real> sum[kVectors] = {};
    for (int64_t i = j; i < std::min(j + kSummed, d); ++i)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const auto value = load<Real>(tile + (i * kVectors + v) * kLanes<Real>);
        sum[v] = accumulate<Real>(sum[v], value);
        norm[v] = norm[v] + absolute_difference<Real>(value, Vector<Real>{});
      }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store<Real>(sums + j / kSummed * stride + v * kLanes<Real>,
                  sum[v] * Real(-0.5));
  }
  int count = 0;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const auto small = norm[v] <= limit;
    Real* first = sums + v * kLanes<Real>;
    for (int lane = 0; lane < kLanes<Real>; ++lane) count += small[lane] != 0;
    store<Real>(first, small ? load<Real>(first)
                             : splat(std::numeric_limits<Real>::quiet_NaN()));
  }
  return count;
}

// Rows of a tile or of landmarks, and what sum_rows says of them.
template <typename Real>
struct SummedRows {
  const Real* data;
  int64_t row;
  const Real* sums;
  int64_t stride;
};

// Kernel values of kRows landmarks and kVectors vectors of tokens.
template <bool kBySums, int kRows, int kVectors, typename Real>
INLINE void kernel_block(SummedRows<Real> x, SummedRows<Real> y, int64_t d,
                         Real scale, Real* out) {
  constexpr int kTokens = kVectors * kLanes<Real>;
  Vector<Real> sum[kRows][kVectors] = {};
  for (int64_t j = 0; j < d;) {
    for (const int64_t end = std::min(j + kSummed, d); j < end; ++j) {
      Vector<Real> token[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        token[v] = load<Real>(x.data + j * kTokens + v * kLanes<Real>);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        auto landmark = splat(y.data[i * y.row + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          sum[i][v] = accumulate<Real>(
              sum[i][v],
              kBySums ? maximum<Real>(token[v], landmark)
                      : absolute_difference<Real>(token[v], landmark));
      }
    }
    if constexpr (kBySums) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          sum[i][v] = accumulate<Real>(
              sum[i][v] + load<Real>(x.sums + v * kLanes<Real>),
              splat(y.sums[i]));
      x.sums += x.stride;
      y.sums += y.stride;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const auto distance = kBySums ? sum[i][v] + sum[i][v] : sum[i][v];
      store<Real>(out + i * kTokens + v * kLanes<Real>,
                  exp2_negative(distance * scale));
    }
}

template <bool kBySums, int kRows, int kVectors, typename Real, typename Ask>
void kernel_rows(SummedRows<Real> x, SummedRows<Real> y, int64_t m, int64_t d,
                 Real scale, Real* out, const Ask& ask) {
  if constexpr (kRows > 0) {
    for (; m >= kRows; m -= kRows) {
      ask(m - kRows, m);
      kernel_block<kBySums, kRows, kVectors, Real>(x, y, d, scale, out);
      y.data += kRows * y.row;
      y.sums += kRows;
      out += kRows * kVectors * kLanes<Real>;
    }
    kernel_rows<kBySums, kRows - 1, kVectors, Real>(
        x, y, m, d, scale, out, ask);
  }
}

// What the tiles of a task share.
template <typename Real>
struct Workspace {
  Real limit;
  SummedRows<Real> y;
  bool y_small;
  Real *x_tile, *x_sums, *out_tile, *row_tile;
};

template <int kVectors, typename T, typename Real>
void forward_tile(const ForwardTask<T>& task, const Workspace<Real>& work,
                  int64_t first, int64_t count) {
  constexpr int kTokens = kVectors * kLanes<Real>;
  const T* rows = task.x.data + first * task.x.row;
  const Prefetch<false, const T> next_rows(
      {rows + count * task.x.row, task.x.row, task.x.column},
      std::min<int64_t>(count, task.n - first - count), task.d);
  fill_tile<kVectors, Real>(
      work.x_tile, count, task.d,
      [&](int64_t row, int64_t column) INLINE_LAMBDA {
        return load_part<Real, T>(
            rows + row * task.x.row + column * task.x.column, task.x.column,
            task.d - column);
      });
  const int small = !work.y_small ? 0
                                  : sum_rows<kVectors, Real>(
                                        work.x_tile, task.d, work.limit,
                                        work.x_sums, kTokens);
  const SummedRows<Real> x{work.x_tile, 0, work.x_sums, kTokens};
  const Real scale = scale_of<Real>(-kLog2E, task.bandwidth);
  for (int64_t start = 0; start < task.m; start += kLandmarks) {
    int64_t m = std::min(kLandmarks, task.m - start);
    Matrix<T> to = task.kernel;
    to.data += first * to.row + start * to.column;
    bool past = false;
    if constexpr (std::is_same_v<T, Real>)
      past = task.past_caches && to.column == 1 && to.row == m &&
             reinterpret_cast<uintptr_t>(to.data) % 64 == 0;
    const Prefetch<true, T> result(to, past ? 0 : count, m);
    auto ask = [&](int64_t begin, int64_t end) INLINE_LAMBDA {
      result(begin, end, m);
      next_rows(start + begin, start + end, task.m);
    };
    const SummedRows<Real> y{work.y.data + start * work.y.row, work.y.row,
                             work.y.sums + start, work.y.stride};
    if (small > 0)
      kernel_rows<true, kBlockRows, kVectors, Real>(
          x, y, m, task.d, scale, work.out_tile, ask);
    if (small < kTokens)
      kernel_rows<false, kBlockRows, kVectors, Real>(
          x, y, m, task.d, scale, small > 0 ? work.row_tile : work.out_tile,
          ask);
    if (small > 0 && small < kTokens)
      for (int64_t i = 0; i < m * kTokens; i += kLanes<Real>) {
        const auto value = load<Real>(work.out_tile + i);
        store<Real>(work.out_tile + i,
                    value == value ? value : load<Real>(work.row_tile + i));
      }
    if constexpr (std::is_same_v<T, Real>)
      if (past) {
        empty_tile<kVectors, Real, T>(
            work.out_tile, {work.row_tile, m, 1}, count, m);
        copy_past_caches(work.row_tile, to.data, count * m);
        continue;
      }
    empty_tile<kVectors, Real, T>(work.out_tile, to, count, m);
  }
}

template <typename T, typename Real>
void forward(const ForwardTask<T>& task) {
  constexpr int kTokens = kBlockVectors * kLanes<Real>;
  const int64_t parts = (task.d + kSummed - 1) / kSummed;
  std::unique_ptr<Real[]> memory;
  const auto y = rows_of<Real, T>(task.y, task.m, task.d, memory);
  Buffer<Real> x_tile(padded<Real>(task.d) * kTokens), x_sums(parts * kTokens);
  Buffer<Real> y_sums(parts * padded<Real>(task.m));
  Buffer<Real> out_tile(kLandmarks * kTokens), row_tile(kLandmarks * kTokens);
  Workspace<Real> work{largest_norm<Real>(task.d, task.bandwidth),
                       {y.data, y.row, y_sums, padded<Real>(task.m)},
                       true,
                       x_tile, x_sums, out_tile, row_tile};
  for (int64_t j = 0; j < task.m; j += kLanes<Real>) {
    fill_tile<1, Real>(
        work.x_tile, std::min<int64_t>(kLanes<Real>, task.m - j), task.d,
        [&](int64_t row, int64_t column) INLINE_LAMBDA {
          return load_part<Real, Real>(y.data + (j + row) * y.row + column, 1,
                                       task.d - column);
        });
    work.y_small &= sum_rows<1, Real>(work.x_tile, task.d, work.limit,
                                      y_sums + j, work.y.stride) ==
                    kLanes<Real>;
  }
  int64_t first = 0;
  for (; first + kTokens <= task.n; first += kTokens)
    forward_tile<kBlockVectors, T, Real>(task, work, first, kTokens);
  for (; first < task.n; first += kLanes<Real>)
    forward_tile<1, T, Real>(
        task, work, first, std::min<int64_t>(kLanes<Real>, task.n - first));
#if VECTOR_BYTES == 64
  // Stores past the caches are seen by other threads only after this.
  if (task.past_caches) _mm_sfence();
#endif
}

// Adds floats in registers, about `count` of them, and returns how many: the
// machine's limit, for benchmarks.
inline double additions(int64_t count) {
  constexpr int kSums = kBlockRows * kBlockVectors / 2 * 2;
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

// Both gradients, of kTokens tokens and all landmarks. Here a vector holds
// coordinates: rows are read and written where they are, and the sums over the
// landmarks stay in registers. weight (kTokens, weight_row), y and grad_y
// (m, d padded), their rows `stride` apart; ask(i) at i / kTokens of the work.
template <int kTokens, int kVectors, typename T, typename Real, typename Ask>
INLINE void gradient_block(const BackwardTask<T, Real>& task, int64_t first,
                           int64_t column, const Real* weight,
                           int64_t weight_row, const Real* y, Real* grad_y,
                           int64_t stride, const Ask& ask) {
  Vector<Real> token[kTokens][kVectors], sum[kTokens][kVectors] = {};
#pragma GCC unroll 8
  for (int i = 0; i < kTokens; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = column + v * kLanes<Real>;
      token[i][v] = load_part<Real, T>(
          task.x.data + (first + i) * task.x.row + at * task.x.column,
          task.x.column, task.d - at);
    }
  int64_t j = 0;
  for (int i = 0; i < kTokens; ++i) {
    ask(i);
    for (; j < task.m * (i + 1) / kTokens; ++j) {
      Vector<Real> landmark[kVectors], total[kVectors];
      const int64_t at = j * stride + column;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        landmark[v] = load<Real>(y + at + v * kLanes<Real>);
        total[v] = load<Real>(grad_y + at + v * kLanes<Real>);
      }
#pragma GCC unroll 8
      for (int n = 0; n < kTokens; ++n) {
        const auto factor = splat(weight[n * weight_row + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          const auto part =
              signed_weight<Real>(factor, token[n][v], landmark[v]);
          sum[n][v] = sum[n][v] + part;
          total[v] = accumulate<Real>(total[v], part);
        }
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        store<Real>(grad_y + at + v * kLanes<Real>, total[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTokens; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = column + v * kLanes<Real>;
      store_part<Real, T>(
          task.grad_x.data + (first + i) * task.grad_x.row +
              at * task.grad_x.column,
          task.grad_x.column, task.d - at, sum[i][v]);
    }
}

template <int kTokens, typename T, typename Real>
INLINE void gradient_rows(const BackwardTask<T, Real>& task, int64_t first,
                          Real* weight, const Real* y, Real* grad_y,
                          int64_t stride) {
  const Real scale = scale_of<Real>(-1, task.bandwidth);
  const int64_t weight_row = padded<Real>(task.m);
  for (int i = 0; i < kTokens; ++i)
    for (int64_t j = 0; j < task.m; j += kLanes<Real>) {
      auto part = [&](const Matrix<const T>& from) INLINE_LAMBDA {
        return load_part<Real, T>(
            from.data + (first + i) * from.row + j * from.column, from.column,
            task.m - j);
      };
      store<Real>(weight + i * weight_row + j,
                  part(task.grad) * part(task.kernel) * scale);
    }
  auto following = [&](auto matrix, int64_t columns) INLINE_LAMBDA {
    matrix.data += (first + kTokens) * matrix.row;
    return Prefetch<false, const T>(
        matrix, std::min<int64_t>(kTokens, task.n - first - kTokens), columns);
  };
  const auto x = following(task.x, task.d);
  const auto grad = following(task.grad, task.m);
  const auto kernel = following(task.kernel, task.m);
  int64_t column = 0;
  auto ask = [&](int64_t i) INLINE_LAMBDA {
    if (column > 0) return;
    x(i);
    grad(i);
    kernel(i);
  };
  if constexpr (kGradientVectors == 2)
    for (; column + kLanes<Real> < task.d; column += 2 * kLanes<Real>)
      gradient_block<kTokens, 2, T, Real>(
          task, first, column, weight, weight_row, y, grad_y, stride, ask);
  for (; column < task.d; column += kLanes<Real>)
    gradient_block<kTokens, 1, T, Real>(
        task, first, column, weight, weight_row, y, grad_y, stride, ask);
}

template <typename T, typename Real>
void backward(const BackwardTask<T, Real>& task) {
  constexpr int kTokens = 4;
  // An even number of vectors, for gradient_block's pairs. Each row of y is
  // followed by its gradient: in memory of their own, reads that happen to be a
  // multiple of 4 KB from a recent write would wait for it.
  const int64_t width = (padded<Real>(task.d) / kLanes<Real> + 1) / 2 * 2 *
                        kLanes<Real>;
  const int64_t stride = 2 * width;
  Buffer<Real> y(task.m * stride);
  Real* grad_y = y + width;
  Buffer<Real> weight(kTokens * padded<Real>(task.m));
  std::fill_n(static_cast<Real*>(y), task.m * stride, Real(0));
  for (int64_t j = 0; j < task.m; ++j)
    for (int64_t k = 0; k < task.d; ++k)
      y[j * stride + k] = static_cast<Real>(
          task.y.data[j * task.y.row + k * task.y.column]);
  int64_t first = 0;
  for (; first + kTokens <= task.n; first += kTokens)
    gradient_rows<kTokens, T, Real>(task, first, weight, y, grad_y, stride);
  for (; first < task.n; ++first)
    gradient_rows<1, T, Real>(task, first, weight, y, grad_y, stride);
  for (int64_t j = 0; j < task.m; ++j)
    for (int64_t k = 0; k < task.d; ++k)
      task.grad_y[j * task.d + k] = -grad_y[j * stride + k];
}

}  // namespace VARIANT
