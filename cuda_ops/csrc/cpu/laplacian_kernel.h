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

// Ask for rows that are needed when the tile in work is done; `to_write` as
// memory that will be overwritten.
template <bool to_write, typename T>
INLINE void prefetch(Matrix<T> rows, int64_t count, int64_t columns) {
  constexpr int64_t kStep = 64 / sizeof(T);
  if (rows.column != 1) return;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < columns; j += kStep)
      __builtin_prefetch(rows.data + i * rows.row + j, to_write);
}

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

// Kernel values of kRows landmarks and kVectors vectors of tokens.
template <int kRows, int kVectors, typename Real>
INLINE void kernel_block(
    const Real* x, Matrix<const Real> y, int64_t d, Real scale, Real* out) {
  constexpr int kTokens = kVectors * kLanes<Real>;
  Vector<Real> sum[kRows][kVectors] = {};
  for (int64_t j = 0; j < d; ++j) {
    Vector<Real> token[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      token[v] = load<Real>(x + j * kTokens + v * kLanes<Real>);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      auto landmark = splat(y.data[i * y.row + j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[i][v] = accumulate<Real>(
            sum[i][v], absolute_difference<Real>(token[v], landmark));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store<Real>(out + i * kTokens + v * kLanes<Real>,
                  exp2_negative(sum[i][v] * scale));
}

template <int kRows, int kVectors, typename Real>
void kernel_rows(const Real* x, Matrix<const Real> y, int64_t m, int64_t d,
                 Real scale, Real* out) {
  if constexpr (kRows > 0) {
    for (; m >= kRows; m -= kRows) {
      kernel_block<kRows, kVectors, Real>(x, y, d, scale, out);
      y.data += kRows * y.row;
      out += kRows * kVectors * kLanes<Real>;
    }
    kernel_rows<kRows - 1, kVectors, Real>(x, y, m, d, scale, out);
  }
}

template <int kVectors, typename T, typename Real>
void forward_tile(const ForwardTask<T>& task, Matrix<const Real> y,
                  int64_t first, int64_t count, Real* x_tile, Real* out_tile,
                  Real* row_tile) {
  const T* rows = task.x.data + first * task.x.row;
  const int64_t next = std::min<int64_t>(count, task.n - first - count);
  prefetch<false>(Matrix<const T>{rows + count * task.x.row, task.x.row,
                                  task.x.column},
                  next, task.d);
  fill_tile<kVectors, Real>(
      x_tile, count, task.d, [&](int64_t row, int64_t column) INLINE_LAMBDA {
        return load_part<Real, T>(
            rows + row * task.x.row + column * task.x.column, task.x.column,
            task.d - column);
      });
  const Real scale = scale_of<Real>(-kLog2E, task.bandwidth);
  for (int64_t start = 0; start < task.m; start += kLandmarks) {
    int64_t m = std::min(kLandmarks, task.m - start);
    Matrix<T> to = task.kernel;
    to.data += first * to.row + start * to.column;
    bool past = false;
    if constexpr (std::is_same_v<T, Real>)
      past = task.past_caches && to.column == 1 && to.row == m &&
             reinterpret_cast<uintptr_t>(to.data) % 64 == 0;
    if (!past) prefetch<true>(to, count, m);
    kernel_rows<kBlockRows, kVectors, Real>(
        x_tile, {y.data + start * y.row, y.row, 1}, m, task.d, scale, out_tile);
    if constexpr (std::is_same_v<T, Real>)
      if (past) {
        empty_tile<kVectors, Real, T>(out_tile, {row_tile, m, 1}, count, m);
        copy_past_caches(row_tile, to.data, count * m);
        continue;
      }
    empty_tile<kVectors, Real, T>(out_tile, to, count, m);
  }
}

template <typename T, typename Real>
void forward(const ForwardTask<T>& task) {
  constexpr int kTokens = kBlockVectors * kLanes<Real>;
  std::unique_ptr<Real[]> memory;
  auto y = rows_of<Real, T>(task.y, task.m, task.d, memory);
  Buffer<Real> x_tile(padded<Real>(task.d) * kTokens);
  Buffer<Real> out_tile(kLandmarks * kTokens);
  Buffer<Real> row_tile(kLandmarks * kTokens);
  int64_t first = 0;
  for (; first + kTokens <= task.n; first += kTokens)
    forward_tile<kBlockVectors, T, Real>(
        task, y, first, kTokens, x_tile, out_tile, row_tile);
  for (; first < task.n; first += kLanes<Real>)
    forward_tile<1, T, Real>(
        task, y, first, std::min<int64_t>(kLanes<Real>, task.n - first),
        x_tile, out_tile, row_tile);
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
// (m, d padded).
template <int kTokens, int kVectors, typename T, typename Real>
INLINE void gradient_block(const BackwardTask<T, Real>& task, int64_t first,
                           int64_t column, const Real* weight,
                           int64_t weight_row, const Real* y, Real* grad_y,
                           int64_t stride) {
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
  for (int64_t j = 0; j < task.m; ++j) {
    Vector<Real> landmark[kVectors], total[kVectors];
    const int64_t at = j * stride + column;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      landmark[v] = load<Real>(y + at + v * kLanes<Real>);
      total[v] = load<Real>(grad_y + at + v * kLanes<Real>);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTokens; ++i) {
      const auto factor = splat(weight[i * weight_row + j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const auto part =
            signed_weight<Real>(factor, token[i][v], landmark[v]);
        sum[i][v] = sum[i][v] + part;
        total[v] = accumulate<Real>(total[v], part);
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store<Real>(grad_y + at + v * kLanes<Real>, total[v]);
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
  int64_t column = 0;
  if constexpr (kGradientVectors == 2)
    for (; column + kLanes<Real> < task.d; column += 2 * kLanes<Real>)
      gradient_block<kTokens, 2, T, Real>(
          task, first, column, weight, weight_row, y, grad_y, stride);
  for (; column < task.d; column += kLanes<Real>)
    gradient_block<kTokens, 1, T, Real>(
        task, first, column, weight, weight_row, y, grad_y, stride);
}

template <typename T, typename Real>
void backward(const BackwardTask<T, Real>& task) {
  constexpr int kTokens = 4;
  // An even number of vectors, for gradient_block's pairs.
  const int64_t stride = (padded<Real>(task.d) / kLanes<Real> + 1) / 2 * 2 *
                         kLanes<Real>;
  Buffer<Real> y(task.m * stride), grad_y(task.m * stride);
  Buffer<Real> weight(kTokens * padded<Real>(task.m));
  std::fill_n(static_cast<Real*>(y), task.m * stride, Real(0));
  std::fill_n(static_cast<Real*>(grad_y), task.m * stride, Real(0));
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
