// Vectors of the instruction set that foreach_variant.h selects.
//
// Most code uses the vector extension of GCC and Clang, which also compiles for
// aarch64. Intrinsics stand only where the compilers miss an instruction.
#ifndef MMLAPLACIAN_VECTORS_H
#define MMLAPLACIAN_VECTORS_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#undef INLINE
#define INLINE inline __attribute__((always_inline))
#undef INLINE_LAMBDA
#define INLINE_LAMBDA __attribute__((always_inline))
// Constraint of inline assembly for a vector register.
#undef VECTOR_REGISTER
#if defined(__x86_64__)
#define VECTOR_REGISTER "v"
#else
#define VECTOR_REGISTER "w"
#endif

namespace mmlaplacian::VARIANT {

template <typename Real>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
  typedef float Unaligned
      __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
  typedef int32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  typedef uint32_t Unsigned __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int32_t kSign = INT32_MIN;
};
template <>
struct VectorOf<double> {
  typedef double Vector __attribute__((vector_size(VECTOR_BYTES)));
  typedef double Unaligned
      __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
  typedef int64_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  typedef uint64_t Unsigned __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int64_t kSign = INT64_MIN;
};

template <typename Real>
using Vector = typename VectorOf<Real>::Vector;
template <typename Real>
using Bits = typename VectorOf<Real>::Bits;
template <typename Real>
using Unsigned = typename VectorOf<Real>::Unsigned;
template <typename Real>
constexpr int kLanes = VECTOR_BYTES / sizeof(Real);

// Rows of a block whose sums stay in registers: as many as the instruction set
// has registers for.
constexpr int kBlockRows = VECTOR_BYTES == 64 ? 7 : VECTOR_BYTES == 32 ? 5 : 4;

template <typename Real, int... kLane>
INLINE Vector<Real> repeat(Real value, std::integer_sequence<int, kLane...>) {
  return Vector<Real>{(static_cast<void>(kLane), value)...};
}

template <typename Real>
INLINE Vector<Real> splat(Real value) {
  return repeat(value, std::make_integer_sequence<int, kLanes<Real>>());
}

template <typename Real>
INLINE Vector<Real> load(const Real* from) {
  return *reinterpret_cast<const typename VectorOf<Real>::Unaligned*>(from);
}

template <typename Real>
INLINE void store(Real* to, Vector<Real> value) {
  *reinterpret_cast<typename VectorOf<Real>::Unaligned*>(to) = value;
}

// Loads `count` elements and fills the rest of the vector with zeros.
template <typename Real>
INLINE Vector<Real> load_first(const Real* from, int64_t count) {
  alignas(64) Real part[kLanes<Real>] = {};
  for (int64_t i = 0; i < count; ++i) part[i] = from[i];
  return load<Real>(part);
}

#if VECTOR_BYTES == 64
template <>
INLINE Vector<float> load_first<float>(const float* from, int64_t count) {
  return (Vector<float>)_mm512_maskz_loadu_ps((1u << count) - 1, from);
}
#endif

// splat(*from) as a memory operand, which AVX-512 broadcasts for free. The
// empty assembly pretends to change *from: otherwise the compiler would share
// one broadcast instruction between all uses, and it takes a cycle from the
// adders.
template <typename Real>
INLINE Vector<Real> splat_memory(Real* from) {
#if VECTOR_BYTES == 64
  asm("" : "+m"(*from));
#endif
  return splat(*from);
}

// |x - y|
template <typename Real>
INLINE Vector<Real> absolute_difference(Vector<Real> x, Vector<Real> y) {
  return (Vector<Real>)((Bits<Real>)(x - y) & ~VectorOf<Real>::kSign);
}

// The larger of two numbers; NaN if y is NaN.
template <typename Real>
INLINE Vector<Real> maximum(Vector<Real> x, Vector<Real> y) {
  return x > y ? x : y;
}

// maximum(x, splat_memory(y)). GCC needs two instructions for AVX-512's one.
template <typename Real>
INLINE Vector<Real> maximum_memory(Vector<Real> x, Real* y) {
  return maximum<Real>(x, splat_memory(y));
}

#if VECTOR_BYTES == 64
template <>
INLINE Vector<float> maximum_memory<float>(Vector<float> x, float* y) {
  Vector<float> larger;
  asm("vmaxps %2%{1to16%}, %1, %0" : "=v"(larger) : "v"(x), "m"(*y));
  return larger;
}
#endif

// weight * sign(x - y). A tie gives 0 for any weight, NaN and infinity included.
template <typename Real>
INLINE Vector<Real> signed_weight(
    Vector<Real> weight, Vector<Real> x, Vector<Real> y) {
  auto sign = (Bits<Real>)(x - y) & VectorOf<Real>::kSign;
  return (Vector<Real>)(((Bits<Real>)weight ^ sign) & (x != y));
}

#if VECTOR_BYTES == 64
// The compiler needs one instruction more.
template <>
INLINE Vector<float> signed_weight<float>(
    Vector<float> weight, Vector<float> x, Vector<float> y) {
  constexpr int kAXorBAndC = 0x78;
  return (Vector<float>)_mm512_maskz_ternarylogic_epi32(
      _mm512_cmp_ps_mask(x, y, _CMP_NEQ_UQ), (__m512i)weight, (__m512i)(x - y),
      _mm512_set1_epi32(VectorOf<float>::kSign), kAXorBAndC);
}
#endif

#if VECTOR_BYTES == 64
// x clamped to [-limit, limit].
constexpr int kSmallerWithFirstSign = 2;
INLINE Vector<float> clamp(Vector<float> x, float limit) {
  return (Vector<float>)_mm512_range_ps(
      (__m512)x, _mm512_set1_ps(limit), kSmallerWithFirstSign);
}
INLINE Vector<double> clamp(Vector<double> x, double limit) {
  return (Vector<double>)_mm512_range_pd(
      (__m512d)x, _mm512_set1_pd(limit), kSmallerWithFirstSign);
}
#endif

// sum + value, as a multiply-add by 1 if there is one: AMD's Zen processors
// have separate units for it, which then add while the adders subtract. The
// empty assembly hides the 1, or the compiler would simplify it to an addition.
template <typename Real>
INLINE Vector<Real> accumulate(Vector<Real> sum, Vector<Real> value) {
#if VECTOR_BYTES >= 32
  Vector<Real> one = splat(Real(1));
  asm("" : "+" VECTOR_REGISTER(one));
  return value * one + sum;
#else
  return sum + value;
#endif
}

// factor / bandwidth, limited to finite numbers so that 0 times it stays 0.
template <typename Real>
Real scale_of(double factor, double bandwidth) {
  const double limit = std::numeric_limits<Real>::max();
  return static_cast<Real>(std::clamp(factor / bandwidth, -limit, limit));
}

// 2^u for u <= 0, accurate to 2 units in the last place. Results below the
// smallest normal number may be 0. NaN stays NaN.
INLINE Vector<float> exp2_negative(Vector<float> u) {
#if VECTOR_BYTES == 64
  // This instruction returns its second operand if either one is NaN.
  u = (Vector<float>)_mm512_max_ps(_mm512_set1_ps(-200.f), (__m512)u);
  auto n = (Vector<float>)_mm512_roundscale_ps((__m512)u, 0);
  auto f = u - n;
#else
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds
  auto below = u < -126.f;
  u = below ? splat(-126.f) : u;
  auto shifted = u + kRound;
  auto f = u - (shifted - kRound);
#endif
  auto p = f * 1.5461444e-4f + 1.3390867e-3f;
  p = p * f + 9.618057e-3f;
  p = p * f + 5.550357e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.f;
#if VECTOR_BYTES == 64
  return (Vector<float>)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  auto power = ((Bits<float>)shifted << 23) + (127 << 23);
  return below ? splat(0.f) : p * (Vector<float>)power;
#endif
}

INLINE Vector<double> exp2_negative(Vector<double> u) {
  for (int lane = 0; lane < kLanes<double>; ++lane)
    u[lane] = std::exp2(u[lane]);
  return u;
}

// Elements of a 128-bit block. transpose() first transposes within blocks, by
// the unpack instructions that every processor has, and then the blocks.
template <typename Real>
constexpr int kBlock = 16 / sizeof(Real);

// Source index of lane `lane` when groups of `size` elements from the lower or
// upper halves of two vectors' blocks are interleaved.
template <typename Real>
constexpr int unpack_index(int lane, int size, bool upper) {
  const int block = lane / kBlock<Real> * kBlock<Real>;
  const int inside = lane % kBlock<Real>;
  const int group = inside / (2 * size);
  const bool second = inside / size % 2;
  return block + upper * kBlock<Real> / 2 + group * size + inside % size +
         second * kLanes<Real>;
}

template <typename Real, int kSize, int... kLane>
INLINE void unpack(Vector<Real>& a, Vector<Real>& b,
                   std::integer_sequence<int, kLane...>) {
  auto lower = __builtin_shufflevector(
      a, b, unpack_index<Real>(kLane, kSize, false)...);
  b = __builtin_shufflevector(a, b, unpack_index<Real>(kLane, kSize, true)...);
  a = lower;
}

// Moves the even blocks of two vectors to a and the odd ones to b.
template <typename Real, int... kLane>
INLINE void separate(Vector<Real>& a, Vector<Real>& b,
                     std::integer_sequence<int, kLane...>) {
  constexpr int kWidth = kBlock<Real>;
  auto even = __builtin_shufflevector(
      a, b, (kLane / kWidth * 2 * kWidth + kLane % kWidth)...);
  b = __builtin_shufflevector(
      a, b, (kLane / kWidth * 2 * kWidth + kWidth + kLane % kWidth)...);
  a = even;
}

// Transposes a square of kLanes vectors in place.
template <typename Real>
INLINE void transpose(Vector<Real>* square) {
  constexpr int kCount = kLanes<Real>, kWidth = kBlock<Real>;
  constexpr auto kAll = std::make_integer_sequence<int, kCount>();
#pragma GCC unroll 16
  for (int i = 0; i < kCount; i += kWidth) {
    unpack<Real, 1>(square[i], square[i + 1], kAll);
    if constexpr (kWidth == 4) {
      unpack<Real, 1>(square[i + 2], square[i + 3], kAll);
      unpack<Real, 2>(square[i], square[i + 2], kAll);
      unpack<Real, 2>(square[i + 1], square[i + 3], kAll);
      std::swap(square[i + 1], square[i + 2]);
    }
  }
  if constexpr (kCount == 2 * kWidth) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i)
      separate<Real>(square[i], square[i + kWidth], kAll);
  } else if constexpr (kCount == 4 * kWidth) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      auto& a = square[i];
      auto& b = square[i + kWidth];
      auto& c = square[i + 2 * kWidth];
      auto& d = square[i + 3 * kWidth];
      separate<Real>(a, b, kAll);
      separate<Real>(c, d, kAll);
      separate<Real>(a, c, kAll);
      separate<Real>(b, d, kAll);
    }
  }
}

}  // namespace mmlaplacian::VARIANT

#endif
