// The Laplacian kernel exp(-sum |x - y| / bandwidth), tile by tile.
//
// A vector holds as many tokens as it has lanes: each landmark coordinate is
// read once for all of them, and no sum crosses lanes. Letters: n tokens x,
// m landmarks y, d coordinates.
#ifndef MMLAPLACIAN_FORWARD_TASK
#define MMLAPLACIAN_FORWARD_TASK

namespace mmlaplacian {

// One image and head: x (n, d), y (m, d), kernel (n, m). The task is the same
// type for all instruction sets.
template <typename T>
struct ForwardTask {
  Matrix<const T> x, y;
  Matrix<T> kernel;
  int64_t n, m, d;
  double bandwidth;
  bool streaming;  // The whole result is too large for the caches.
};

}  // namespace mmlaplacian

#endif

#include "common/tiles.h"

namespace mmlaplacian::VARIANT {

// Landmarks of a tile: together with a tile of tokens they fit the L1 cache.
constexpr int64_t kLandmarks = 64;

// Vectors of tokens in a block of sums that stay in registers.
constexpr int kBlockVectors = VECTOR_BYTES == 64 ? 3 : 2;

constexpr double kLog2E = 1.4426950408889634;

// The distance is computed in halves, by
//   sum |x - y| / 2 = sum max(x, y) - sum x / 2 - sum y / 2,
// which takes two instructions an element instead of three. It rounds by the
// sizes of x and y and not by |x - y|, so only kSummed coordinates are summed
// at a time, and rows whose L1 norm exceeds sqrt(d) bandwidths or is not finite
// are subtracted instead (all tokens, if it is a landmark). The remaining error
// is about 1e-6 of a kernel value for any d. All sums are taken in one order
// and rounding is monotonic, so equal rows have distance 0 and no distance is
// negative.
constexpr int64_t kSummed = 8;

// Largest L1 norm of rows whose coordinates are summed.
template <typename Real>
Real norm_limit(int64_t d, double bandwidth) {
  // The sums of two rows must not overflow.
  const double limit = std::numeric_limits<Real>::max() / 4;
  return static_cast<Real>(std::min(std::sqrt(d) * bandwidth, limit));
}

// Rows in a tile, data[j * stride + row], and minus half of the sums of each
// kSummed coordinates, sums[j / kSummed * stride + row]. The first sum is NaN
// if the norm of the row exceeds the limit.
template <typename Real>
struct SummedTile {
  Real *data, *sums;
  int64_t stride;
};

// Memory and settings that the tiles of a task share.
template <typename Real>
struct Workspace {
  Real limit;
  // First tile of landmarks; the other ones follow it.
  SummedTile<Real> x, y;
  int64_t padded_d, sums_per_row;
  bool all_landmarks_summed;
  Real *values, *scratch;

  // Landmarks from `start` on, to the end of their tile.
  SummedTile<Real> landmarks(int64_t start) const {
    const int64_t before = start / kLandmarks * y.stride;
    const int64_t inside = start % kLandmarks;
    return {y.data + before * padded_d + inside,
            y.sums + before * sums_per_row + inside, y.stride};
  }
};

// Computes the sums of kVectors vectors of rows. Returns how many of the rows
// have a norm within the limit.
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
    const auto within = norm[v] <= limit;
    Real* first = tile.sums + v * kLanes<Real>;
    for (int lane = 0; lane < kLanes<Real>; ++lane) count += within[lane] != 0;
    store<Real>(first, within
                           ? load<Real>(first)
                           : splat(std::numeric_limits<Real>::quiet_NaN()));
  }
  return count;
}

// Loads and sums all landmarks, a vector of them at a time.
template <typename T, typename Real>
INLINE void load_landmarks(const ForwardTask<T>& task, Workspace<Real>& work) {
  work.all_landmarks_summed = true;
  for (int64_t start = 0; start < task.m; start += kLanes<Real>) {
    const SummedTile<Real> y = work.landmarks(start);
    load_tile<1, Real, T>(task.y.from_row(start),
                          std::min<int64_t>(kLanes<Real>, task.m - start),
                          task.d, y.data, y.stride);
    work.all_landmarks_summed &=
        sum_rows<1, Real>(y, task.d, work.limit) == kLanes<Real>;
  }
}

// Computes the kernel values of kRows landmarks and kVectors vectors of tokens.
// Values of tokens beyond the norm limit are NaN with kBySums.
template <bool kBySums, int kRows, int kVectors, typename Real>
INLINE void kernel_block(SummedTile<Real> x, SummedTile<Real> y, int64_t d,
                         Real scale, Real* values) {
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
              sum[i][v], kBySums ? maximum_memory<Real>(token[v], landmark)
                                 : absolute_difference<Real>(
                                       token[v], splat_memory(landmark)));
      }
    }
    if constexpr (kBySums) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          sum[i][v] = accumulate<Real>(
              sum[i][v] + load<Real>(x.sums + v * kLanes<Real>),
              splat_memory(y.sums + i));
      x.sums += x.stride;
      y.sums += y.stride;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const auto distance = kBySums ? sum[i][v] + sum[i][v] : sum[i][v];
      store<Real>(values + i * kTokens + v * kLanes<Real>,
                  exp2_negative(distance * scale));
    }
}

// Computes the kernel values of m landmarks, in blocks of kRows and then of
// fewer. Calls prefetch(begin, end) with a range of the m steps before each.
template <bool kBySums, int kRows, int kVectors, typename Real,
          typename PrefetchFn>
void kernel_rows(SummedTile<Real> x, SummedTile<Real> y, int64_t m, int64_t d,
                 Real scale, Real* values, const PrefetchFn& prefetch) {
  if constexpr (kRows > 0) {
    for (; m >= kRows; m -= kRows) {
      prefetch(m - kRows, m);
      kernel_block<kBySums, kRows, kVectors, Real>(x, y, d, scale, values);
      y.data += kRows;
      y.sums += kRows;
      values += kRows * kVectors * kLanes<Real>;
    }
    kernel_rows<kBySums, kRows - 1, kVectors, Real>(
        x, y, m, d, scale, values, prefetch);
  }
}

// Computes the values of a tile of tokens and one of m landmarks, by sums for
// the `summed` tokens that allow it and by differences for the other ones.
template <int kVectors, typename Real, typename PrefetchFn>
INLINE void kernel_tile(const Workspace<Real>& work, SummedTile<Real> x,
                        SummedTile<Real> y, int64_t m, int64_t d, Real scale,
                        int summed, const PrefetchFn& prefetch) {
  constexpr int kTokens = kVectors * kLanes<Real>;
  if (summed > 0)
    kernel_rows<true, kBlockRows, kVectors, Real>(
        x, y, m, d, scale, work.values, prefetch);
  if (summed < kTokens)
    kernel_rows<false, kBlockRows, kVectors, Real>(
        x, y, m, d, scale, summed > 0 ? work.scratch : work.values, prefetch);
  if (summed > 0 && summed < kTokens)
    for (int64_t i = 0; i < m * kTokens; i += kLanes<Real>) {
      const auto value = load<Real>(work.values + i);
      store<Real>(work.values + i,
                  value == value ? value : load<Real>(work.scratch + i));
    }
}

// Computes and stores the rows of `count` tokens from `first` on.
template <int kVectors, typename T, typename Real>
void forward_tile(const ForwardTask<T>& task, const Workspace<Real>& work,
                  int64_t first, int64_t count) {
  const SummedTile<Real> x{work.x.data, work.x.sums, kVectors * kLanes<Real>};
  load_tile<kVectors, Real, T>(
      task.x.from_row(first), count, task.d, x.data, x.stride);
  const int summed = work.all_landmarks_summed
                         ? sum_rows<kVectors, Real>(x, task.d, work.limit)
                         : 0;
  const Real scale = scale_of<Real>(-kLog2E, task.bandwidth);
  const Prefetch<false, const T> next_tokens(
      task.x.from_row(std::min(first + count, task.n - 1)),
      std::min<int64_t>(count, task.n - first - count), task.d);
  for (int64_t start = 0; start < task.m; start += kLandmarks) {
    const int64_t m = std::min(kLandmarks, task.m - start);
    const Matrix<T> to{task.kernel.at(first, start), task.kernel.row,
                       task.kernel.column};
    bool streaming = false;
    if constexpr (std::is_same_v<T, Real>)
      streaming = task.streaming && to.column == 1 && to.row == m &&
                  reinterpret_cast<uintptr_t>(to.data) % 64 == 0;
    const Prefetch<true, T> result(to, streaming ? 0 : count, m);
    kernel_tile<kVectors, Real>(
        work, x, work.landmarks(start), m, task.d, scale, summed,
        [&](int64_t begin, int64_t end) INLINE_LAMBDA {
          result(begin, end, m);
          next_tokens(start + begin, start + end, task.m);
        });
    if constexpr (std::is_same_v<T, Real>)
      if (streaming) {
        store_tile<kVectors, Real, T>(
            work.values, {work.scratch, m, 1}, count, m);
        streaming_copy<Real>(work.scratch, to.data, count * m);
        continue;
      }
    store_tile<kVectors, Real, T>(work.values, to, count, m);
  }
}

// Computes the kernel of one task.
template <typename T>
void forward(const ForwardTask<T>& task) {
  using Real = RealOf<T>;
  constexpr int kTokens = kBlockVectors * kLanes<Real>;
  const int64_t sums_per_row =
      std::max<int64_t>(1, (task.d + kSummed - 1) / kSummed);
  const int64_t d = padded<Real>(task.d);
  const int64_t stride = std::min(kLandmarks, padded<Real>(task.m));
  const int64_t m = (task.m + kLandmarks - 1) / kLandmarks * stride;
  Buffer<Real> x_data(d * kTokens), x_sums(sums_per_row * kTokens);
  Buffer<Real> y_data(d * m), y_sums(sums_per_row * m);
  Buffer<Real> values(kLandmarks * kTokens), scratch(kLandmarks * kTokens);
  Workspace<Real> work;
  work.limit = norm_limit<Real>(task.d, task.bandwidth);
  work.x = {x_data, x_sums, kTokens};
  work.y = {y_data, y_sums, stride};
  work.padded_d = d;
  work.sums_per_row = sums_per_row;
  work.values = values;
  work.scratch = scratch;
  load_landmarks(task, work);
  int64_t first = 0;
  for (; first + kTokens <= task.n; first += kTokens)
    forward_tile<kBlockVectors, T, Real>(task, work, first, kTokens);
  for (; first < task.n; first += kLanes<Real>)
    forward_tile<1, T, Real>(
        task, work, first, std::min<int64_t>(kLanes<Real>, task.n - first));
  if (task.streaming) finish_streaming();
}

}  // namespace mmlaplacian::VARIANT
