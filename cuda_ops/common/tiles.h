// Rows of matrices in memory, and tiles of them for the kernels.
//
// A tile holds rows transposed: element (row, column) of the matrix is
// tile[column * stride + row], so that a vector holds one column of many rows.
#ifndef MMLAPLACIAN_TILES_H
#define MMLAPLACIAN_TILES_H

#include "common/tensors.h"
#include "common/vectors.h"

namespace mmlaplacian::VARIANT {

// Uninitialized memory, aligned to a cache line.
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

// `count` rounded up to whole vectors.
template <typename Real>
int64_t padded(int64_t count) {
  return (count + kLanes<Real> - 1) / kLanes<Real> * kLanes<Real>;
}

// Prefetches rows a few at a time, between the steps of other work. All at once
// would stall: a core has few outstanding memory requests. kToWrite: the rows
// will be overwritten.
template <bool kToWrite, typename T>
class Prefetch {
 public:
  Prefetch(Matrix<T> rows, int64_t count, int64_t columns)
      : rows_(rows), count_(rows.column == 1 ? count : 0), columns_(columns) {}

  // Prefetches row i, if there is one.
  INLINE void operator()(int64_t i) const {
    if (i < count_)
      for (int64_t j = 0; j < columns_; j += 64 / int64_t(sizeof(T)))
        __builtin_prefetch(rows_.data + i * rows_.row + j, kToWrite);
  }

  // Prefetches the share of the rows for the steps [begin, end) of `steps`.
  INLINE void operator()(int64_t begin, int64_t end, int64_t steps) const {
    for (int64_t i = count_ * begin / steps; i < count_ * end / steps; ++i)
      (*this)(i);
  }

 private:
  Matrix<T> rows_;
  int64_t count_, columns_;
};

// Loads `count` elements, but at most a vector, that are `step` apart, and
// fills the rest of the vector with zeros.
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

// Stores the first `count` elements of a vector, `step` apart.
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

// Loads rows into a tile of kVectors vectors of rows. The last row is repeated
// to fill them; columns are padded with zeros to whole vectors.
template <int kVectors, typename Real, typename T>
INLINE void load_tile(Matrix<const T> from, int64_t rows, int64_t columns,
                      Real* tile, int64_t stride) {
  for (int64_t column = 0; column < columns; column += kLanes<Real>)
    for (int v = 0; v < kVectors; ++v) {
      Vector<Real> square[kLanes<Real>];
      for (int i = 0; i < kLanes<Real>; ++i)
        square[i] = load_part<Real, T>(
            from.at(std::min<int64_t>(v * kLanes<Real> + i, rows - 1), column),
            from.column, columns - column);
      transpose<Real>(square);
      for (int i = 0; i < kLanes<Real>; ++i)
        store<Real>(tile + (column + i) * stride + v * kLanes<Real>, square[i]);
    }
}

// Stores the rows of a tile of kVectors vectors of rows, in memory order.
template <int kVectors, typename Real, typename T>
INLINE void store_tile(
    const Real* tile, Matrix<T> to, int64_t rows, int64_t columns) {
  constexpr int kRows = kVectors * kLanes<Real>;
  for (int64_t first = 0; first < rows; first += kLanes<Real>) {
    const int64_t count = std::min<int64_t>(kLanes<Real>, rows - first);
    T* corner = to.data + first * to.row;
    int64_t column = 0;
    // A single last column, as of 49 landmarks, is not worth a transpose.
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

// Copies with streaming stores, which write memory without reading it into the
// caches first. `to` is aligned to a cache line.
template <typename Real>
INLINE void streaming_copy(const Real* from, Real* to, int64_t count) {
  int64_t i = 0;
#if VECTOR_BYTES == 64
  for (; i + kLanes<Real> <= count; i += kLanes<Real>)
    _mm512_stream_ps(reinterpret_cast<float*>(to + i),
                     (__m512)load<Real>(from + i));
#endif
  std::copy(from + i, from + count, to + i);
}

// Makes streaming stores of this thread visible to other threads.
INLINE void finish_streaming() {
#if VECTOR_BYTES == 64
  _mm_sfence();
#endif
}

}  // namespace mmlaplacian::VARIANT

#endif
