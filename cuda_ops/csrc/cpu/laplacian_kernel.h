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
using mmlaplacian::kGradientGroup;
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

// tile[column][row] = from(row, column), its columns `stride` apart; rows after
// the last repeat it.
template <int kVectors, typename Real, typename From>
INLINE void fill_tile(Real* tile, int64_t stride, int64_t rows,
                      int64_t columns, From from) {
  for (int64_t column = 0; column < columns; column += kLanes<Real>)
    for (int v = 0; v < kVectors; ++v) {
      Vector<Real> square[kLanes<Real>];
      for (int i = 0; i < kLanes<Real>; ++i)
        square[i] = from(
            std::min<int64_t>(v * kLanes<Real> + i, rows - 1), column);
      transpose<Real>(square);
      for (int i = 0; i < kLanes<Real>; ++i)
        store<Real>(tile + (column + i) * stride + v * kLanes<Real>, square[i]);
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

// Rows, in a tile, and minus half their sums: data[j][row], and sums[j /
// kSummed][row], where the first of a row is NaN if its norm is too large.
template <typename Real>
struct SummedTile {
  Real *data, *sums;
  int64_t stride;
};

// Makes the sums of kVectors vectors of rows. Returns how many rows have a norm
// of at most `limit`.
template <int kVectors, typename Real>
INLINE int sum_rows(SummedTile<Real> tile, int64_t d, Real limit) {
  Vector<Real> norm[kVectors] = {};
  for (int64_t j = 0; j == 0 || j < d; j += kSummed) {
    Vector<Real> sum[kVectors] = {};
    for (int64_t i = j; i < std::min(j + kSummed, d); ++i)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const auto value =
            load<Real>(tile.data + i * tile.stride + v * kLanes<Real>);
        sum[v] = accumulate<Real>(sum[v], value);
        norm[v] = norm[v] + absolute_difference<Real>(value, Vector<Real>{});
      }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store<Real>(tile.sums + j / kSummed * tile.stride + v * kLanes<Real>,
                  sum[v] * Real(-0.5));
  }
  int count = 0;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const auto small = norm[v] <= limit;
    Real* first = tile.sums + v * kLanes<Real>;
    for (int lane = 0; lane < kLanes<Real>; ++lane) count += small[lane] != 0;
    store<Real>(first, small ? load<Real>(first)
                             : splat(std::numeric_limits<Real>::quiet_NaN()));
  }
  return count;
}

// Kernel values of kRows landmarks and kVectors vectors of tokens.
template <bool kBySums, int kRows, int kVectors, typename Real>
INLINE void kernel_block(SummedTile<Real> x, SummedTile<Real> y, int64_t d,
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
        Real* landmark = y.data + j * y.stride + i;
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          sum[i][v] = accumulate<Real>(
              sum[i][v], kBySums ? maximum_in_place<Real>(token[v], landmark)
                                 : absolute_difference<Real>(
                                       token[v], splat_in_place(landmark)));
      }
    }
    if constexpr (kBySums) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          sum[i][v] = accumulate<Real>(
              sum[i][v] + load<Real>(x.sums + v * kLanes<Real>),
              splat_in_place(y.sums + i));
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
void kernel_rows(SummedTile<Real> x, SummedTile<Real> y, int64_t m, int64_t d,
                 Real scale, Real* out, const Ask& ask) {
  if constexpr (kRows > 0) {
    for (; m >= kRows; m -= kRows) {
      ask(m - kRows, m);
      kernel_block<kBySums, kRows, kVectors, Real>(x, y, d, scale, out);
      y.data += kRows;
      y.sums += kRows;
      out += kRows * kVectors * kLanes<Real>;
    }
    kernel_rows<kBySums, kRows - 1, kVectors, Real>(
        x, y, m, d, scale, out, ask);
  }
}

// What the tiles of a task share. y: the first kLandmarks, or fewer, in a tile;
// the next follow in tiles of their own.
template <typename Real>
struct Workspace {
  Real limit;
  SummedTile<Real> x, y;
  int64_t d, parts;
  bool y_small;
  Real *out_tile, *row_tile;

  SummedTile<Real> landmarks(int64_t start) const {
    const int64_t before = start / kLandmarks * y.stride;
    const int64_t inside = start % kLandmarks;
    return {y.data + before * d + inside, y.sums + before * parts + inside,
            y.stride};
  }
};

template <int kVectors, typename T, typename Real>
void forward_tile(const ForwardTask<T>& task, const Workspace<Real>& work,
                  int64_t first, int64_t count) {
  constexpr int kTokens = kVectors * kLanes<Real>;
  const T* rows = task.x.data + first * task.x.row;
  const Prefetch<false, const T> next_rows(
      {rows + std::min(count, task.n - 1 - first) * task.x.row, task.x.row,
       task.x.column},
      std::min<int64_t>(count, task.n - first - count), task.d);
  const SummedTile<Real> x{work.x.data, work.x.sums, kTokens};
  fill_tile<kVectors, Real>(
      x.data, x.stride, count, task.d,
      [&](int64_t row, int64_t column) INLINE_LAMBDA {
        return load_part<Real, T>(
            rows + row * task.x.row + column * task.x.column, task.x.column,
            task.d - column);
      });
  const int small =
      work.y_small ? sum_rows<kVectors, Real>(x, task.d, work.limit) : 0;
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
    const SummedTile<Real> y = work.landmarks(start);
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
  const int64_t parts =
      std::max<int64_t>(1, (task.d + kSummed - 1) / kSummed);
  const int64_t d = padded<Real>(task.d);
  const int64_t stride = std::min(kLandmarks, padded<Real>(task.m));
  const int64_t m = (task.m + kLandmarks - 1) / kLandmarks * stride;
  Buffer<Real> x_tile(d * kTokens), x_sums(parts * kTokens);
  Buffer<Real> y_tile(d * m), y_sums(parts * m);
  Buffer<Real> out_tile(kLandmarks * kTokens), row_tile(kLandmarks * kTokens);
  Workspace<Real> work{largest_norm<Real>(task.d, task.bandwidth),
                       {x_tile, x_sums, kTokens},
                       {y_tile, y_sums, stride},
                       d,
                       parts,
                       true,
                       out_tile,
                       row_tile};
  for (int64_t start = 0; start < task.m; start += kLanes<Real>) {
    const SummedTile<Real> y = work.landmarks(start);
    const T* rows = task.y.data + start * task.y.row;
    fill_tile<1, Real>(
        y.data, stride, std::min<int64_t>(kLanes<Real>, task.m - start),
        task.d,
        [&](int64_t row, int64_t column) INLINE_LAMBDA {
          return load_part<Real, T>(
              rows + row * task.y.row + column * task.y.column, task.y.column,
              task.d - column);
        });
    work.y_small &= sum_rows<1, Real>(y, task.d, work.limit) == kLanes<Real>;
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

// The sign of a difference is its clamp to +-kStep, divided by that, if all
// numbers are coarse: 0 or at least kCoarse, and so their differences 0 or at
// least kStep. With both sums that takes four instructions an element where
// there is one for the clamp, and five for any numbers, by signed_weight.
constexpr bool kHasClamp = VECTOR_BYTES == 64;
template <typename Real>
constexpr Real kStep = std::is_same_v<Real, float> ? 0x1p-64 : 0x1p-512;
template <typename Real>
constexpr Real kCoarse = kStep<Real> / std::numeric_limits<Real>::epsilon();

// Finds numbers that are not coarse, and weights that are not finite.
template <typename Real>
class Doubts {
 public:
  INLINE void number(Vector<Real> x) {
    const auto size = twice_bits(x) - 1;  // 0 becomes the largest
    least_ = size < least_ ? size : least_;
  }
  INLINE void weight(Vector<Real> w) { zero_ = zero_ + w * Real(0); }
  INLINE bool found() const {
    const auto coarse = twice_bits(splat(kCoarse<Real>)) - 1;
    const auto mask = (least_ < coarse) | (zero_ != zero_);
    bool any = false;
    for (int lane = 0; lane < kLanes<Real>; ++lane) any |= mask[lane] != 0;
    return any;
  }

 private:
  static INLINE Unsigned<Real> twice_bits(Vector<Real> x) {
    return (Unsigned<Real>)x + (Unsigned<Real>)x;
  }
  Unsigned<Real> least_ = ~Unsigned<Real>{};
  Vector<Real> zero_ = {};
};

// Rows of tokens at work: x, grad_x (tokens, d padded), weight (tokens, m).
template <typename Real>
struct GradientRows {
  const Real* x;
  int64_t x_row;
  Real* grad_x;
  int64_t grad_x_row;
  Real* weight;
};

// y and grad_y (m, d padded), their rows `stride` apart.
template <typename Real>
struct GradientLandmarks {
  const Real* y;
  Real* grad_y;
  int64_t m, d, stride;
};

// Both gradients, of kTokens tokens and all landmarks. Here a vector holds
// coordinates, from `column` on, and the sums over the landmarks stay in
// registers; ask(i) at i / kTokens of the work. kCoarsely: by the clamp; the
// weights are divided by kStep.
template <bool kCoarsely, int kTokens, int kVectors, typename Real,
          typename Ask>
INLINE void gradient_block(
    const GradientRows<Real>& rows, const GradientLandmarks<Real>& landmarks,
    int64_t column, const Ask& ask) {
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
    ask(i);
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
          if constexpr (kCoarsely) {
            const auto step =
                clamp(token[n][v] - landmark[v], kStep<Real>);
            sum[n][v] = sum[n][v] + step * splat_in_place(factor);
            total[v] = total[v] + step * splat_in_place(factor);
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

// The same for all columns, a few tokens at a time; ask(n) before the turn of
// token n.
template <bool kCoarsely, typename Real, typename Ask>
INLINE void gradient_rows(GradientRows<Real> rows,
                          const GradientLandmarks<Real>& landmarks,
                          int64_t count, const Ask& ask) {
  constexpr int kTokens = 4;
  int64_t first = 0;
  auto block = [&](auto tokens) INLINE_LAMBDA {
    constexpr int kCount = decltype(tokens)::value;
    int64_t column = 0;
    auto ask_once = [&](int64_t i) INLINE_LAMBDA {
      if (column == 0) ask(first + i);
    };
    if constexpr (kGradientVectors == 2)
      for (; column + kLanes<Real> < landmarks.d; column += 2 * kLanes<Real>)
        gradient_block<kCoarsely, kCount, 2>(
            rows, landmarks, column, ask_once);
    for (; column < landmarks.d; column += kLanes<Real>)
      gradient_block<kCoarsely, kCount, 1>(rows, landmarks, column, ask_once);
    first += kCount;
    rows.x += kCount * rows.x_row;
    rows.grad_x += kCount * rows.grad_x_row;
    rows.weight += kCount * landmarks.m;
  };
  while (first + kTokens <= count)
    block(std::integral_constant<int, kTokens>());
  while (first < count) block(std::integral_constant<int, 1>());
}

// weight = grad * kernel * scale, of `count` tokens.
template <typename T, typename Real>
INLINE void make_weights(const BackwardTask<T, Real>& task, int64_t first,
                         int64_t count, Real scale, Real* weight,
                         Doubts<Real>& doubts) {
  auto grad = task.grad, kernel = task.kernel;
  grad.data += first * grad.row;
  kernel.data += first * kernel.row;
  int64_t m = task.m;
  if (grad.row == m && kernel.row == m && grad.column == 1 &&
      kernel.column == 1) {  // one long row
    m *= count;
    count = 1;
  }
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < m; j += kLanes<Real>) {
      auto part = [&](const Matrix<const T>& from) INLINE_LAMBDA {
        return load_part<Real, T>(from.data + i * from.row + j * from.column,
                                  from.column, m - j);
      };
      const auto value = part(grad) * part(kernel) * scale;
      doubts.weight(value);
      store<Real>(weight + i * m + j, value);
    }
}

// The gradients of `count` tokens from `first` on.
template <typename T, typename Real>
INLINE void gradient_group(const BackwardTask<T, Real>& task, int64_t first,
                           int64_t count, const GradientRows<Real>& rows,
                           const GradientLandmarks<Real>& landmarks,
                           Doubts<Real> doubts) {
  const int64_t next = first + count;
  auto following = [&](auto matrix, int64_t columns) INLINE_LAMBDA {
    matrix.data += std::min(next, task.n - 1) * matrix.row;
    return Prefetch<false, const T>(
        matrix, std::min(count, task.n - next), columns);
  };
  const auto x = following(task.x, task.d);
  const auto grad = following(task.grad, task.m);
  const auto kernel = following(task.kernel, task.m);
  auto ask = [&](int64_t i) INLINE_LAMBDA {
    x(i);
    grad(i);
    kernel(i);
  };
  const Real scale = scale_of<Real>(-1, task.bandwidth);
  if constexpr (kHasClamp) {
    make_weights<T, Real>(
        task, first, count, scale / kStep<Real>, rows.weight, doubts);
    if (!doubts.found())
      return gradient_rows<true>(rows, landmarks, count, ask);
  }
  make_weights<T, Real>(task, first, count, scale, rows.weight, doubts);
  gradient_rows<false>(rows, landmarks, count, ask);
}

template <typename T, typename Real>
void backward(const BackwardTask<T, Real>& task) {
  const int64_t d = padded<Real>(task.d);
  // Each row of y is followed by its gradient: in memory of their own, reads
  // that happen to be a multiple of 4 KB from a recent write would wait for it.
  const int64_t stride = 2 * d;
  Buffer<Real> y(task.m * stride);
  const GradientLandmarks<Real> landmarks{y, y + d, task.m, d, stride};
  Doubts<Real> y_doubts;
  for (int64_t j = 0; j < task.m; ++j)
    for (int64_t k = 0; k < d; k += kLanes<Real>) {
      const auto part = load_part<Real, T>(
          task.y.data + j * task.y.row + k * task.y.column, task.y.column,
          task.d - k);
      y_doubts.number(part);
      store<Real>(y + j * stride + k, part);
      store<Real>(landmarks.grad_y + j * stride + k, Vector<Real>{});
    }
  // Whole vectors are read and written where they are.
  const bool in_place = std::is_same_v<T, Real> && task.d == d &&
                        task.x.column == 1 && task.grad_x.column == 1;
  Buffer<Real> weight(kGradientGroup * task.m + kLanes<Real>);
  const int64_t copied = in_place ? 0 : kGradientGroup * d;
  Buffer<Real> x(copied), grad_x(copied);
  for (int64_t first = 0; first < task.n; first += kGradientGroup) {
    const int64_t count = std::min(kGradientGroup, task.n - first);
    GradientRows<Real> rows{x, d, grad_x, d, weight};
    if constexpr (std::is_same_v<T, Real>)
      if (in_place)
        rows = {task.x.data + first * task.x.row, task.x.row,
                task.grad_x.data + first * task.grad_x.row, task.grad_x.row,
                weight};
    Doubts<Real> doubts = y_doubts;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < d; j += kLanes<Real>) {
        const auto part = load_part<Real, T>(
            task.x.data + (first + i) * task.x.row + j * task.x.column,
            task.x.column, task.d - j);
        doubts.number(part);
        if (!in_place) store<Real>(x + i * d + j, part);
      }
    gradient_group<T, Real>(task, first, count, rows, landmarks, doubts);
    if (!in_place)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < task.d; j += kLanes<Real>)
          store_part<Real, T>(
              task.grad_x.data + (first + i) * task.grad_x.row +
                  j * task.grad_x.column,
              task.grad_x.column, task.d - j,
              load<Real>(grad_x + i * d + j));
  }
  for (int64_t j = 0; j < task.m; ++j)
    for (int64_t k = 0; k < task.d; ++k)
      task.grad_y[j * task.d + k] = Real(0) - landmarks.grad_y[j * stride + k];
}

}  // namespace VARIANT
