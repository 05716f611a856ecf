// K[n, m] = exp(-sum_d |x[n, d] - y[m, d]| / bandwidth) and its gradients, as in
// reference.py. cuda.py launches the kernels, and reads the constants that are
// plain numbers, such as kLandmarks, from this file.

#include "storage.cuh"

extern __shared__ float4 shared[];

// Landmarks of a warp; 49 landmarks need no padding.
constexpr int kLandmarks = 7;

// ---------------------------------------------------------------- forward

constexpr int kForwardThreads = 256;  // of a block, at most
constexpr int kTokens = 128;  // tokens of a block, four per lane
constexpr int kDepth = 32;    // features in shared memory at a time
// Keeps float4 alignment and spreads a column over the banks.
constexpr int kRow = 132;
static_assert(kRow == kTokens + 4, "a row holds the tokens and padding");

// A block computes kTokens rows of K and, per warp, kLandmarks columns.
template <typename T>
__device__ void forward(const Tensor& x, const Tensor& y, const Tensor& out,
                        float scale) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  float* const x_tile = reinterpret_cast<float*>(shared);
  float* const y_tile = x_tile + kDepth * kRow + warp * kLandmarks * kDepth;

  const long long n_tiles = ceil_divide(x.rows(), kTokens);
  const long long m_tiles = ceil_divide(y.rows(), warps * kLandmarks);
  const long long matrix = blockIdx.x / m_tiles / n_tiles;
  const long long n0 = blockIdx.x / m_tiles % n_tiles * kTokens;
  const long long m0 = blockIdx.x % m_tiles * (warps * kLandmarks);
  const long long own_m0 = m0 + warp * kLandmarks;
  // A warp reads eight features of four tokens at a time: it reads whole
  // sectors, and no two lanes write to the same bank.
  const int own_n = warp * 4 + lane / 8, own_d = lane % 8;
  const T* x_source = x.matrix<T>(matrix) + (n0 + own_n) * x.row_stride() +
                      own_d * x.column_stride();
  const T* y_source = y.matrix<T>(matrix) + own_m0 * y.row_stride() +
                      lane * y.column_stride();
  const int tokens = at_most(x.rows() - n0, kTokens);
  const int landmarks = at_most(y.rows() - own_m0, kLandmarks);

  float distance[kLandmarks][4] = {};
  for (long long d0 = 0; d0 < x.columns(); d0 += kDepth) {
    const int depth = at_most(x.columns() - d0, kDepth);
    __syncthreads();
    const T* place = x_source;
#pragma unroll 2
    for (int n = own_n; n < kTokens; n += warps * 4) {
#pragma unroll
      for (int d = 0; d < kDepth; d += 8) {
        const bool inside = n < tokens && own_d + d < depth;
        x_tile[(own_d + d) * kRow + n] =
            inside ? to_float(place[d * x.column_stride()]) : 0.f;
      }
      place += warps * 4 * x.row_stride();
    }
#pragma unroll
    for (int m = 0; m < kLandmarks; ++m) {
      const bool inside = m < landmarks && lane < depth;
      y_tile[m * kDepth + lane] =
          inside ? to_float(y_source[m * y.row_stride()]) : 0.f;
    }
    x_source += kDepth * x.column_stride();
    y_source += kDepth * y.column_stride();
    __syncthreads();

#pragma unroll 1
    for (int d = 0; d < depth; d += 4) {
      const float* x_place = x_tile + d * kRow + 4 * lane;
      const float4 a = load4(x_place), b = load4(x_place + kRow);
      const float4 c = load4(x_place + 2 * kRow);
      const float4 e = load4(x_place + 3 * kRow);
#pragma unroll
      for (int m = 0; m < kLandmarks; ++m) {
        const float4 f = load4(y_tile + m * kDepth + d);
        float* sum = distance[m];
        sum[0] += fabsf(a.x - f.x), sum[1] += fabsf(a.y - f.x);
        sum[2] += fabsf(a.z - f.x), sum[3] += fabsf(a.w - f.x);
        sum[0] += fabsf(b.x - f.y), sum[1] += fabsf(b.y - f.y);
        sum[2] += fabsf(b.z - f.y), sum[3] += fabsf(b.w - f.y);
        sum[0] += fabsf(c.x - f.z), sum[1] += fabsf(c.y - f.z);
        sum[2] += fabsf(c.z - f.z), sum[3] += fabsf(c.w - f.z);
        sum[0] += fabsf(e.x - f.w), sum[1] += fabsf(e.y - f.w);
        sum[2] += fabsf(e.z - f.w), sum[3] += fabsf(e.w - f.w);
      }
    }
  }

  // The results pass through shared memory so that whole rows are written.
  __syncthreads();
  const int width = warps * kLandmarks;
  float* const out_tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kLandmarks; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out_tile[(4 * lane + i) * width + warp * kLandmarks + m] =
          expf(distance[m][i] * scale);
    }
  }
  __syncthreads();
  T* result = out.matrix<T>(matrix) + n0 * y.rows();
  for (int n = warp; n < kTokens && n0 + n < x.rows(); n += warps) {
    for (int m = lane; m < width && m0 + m < y.rows(); m += 32) {
      store(result + n * y.rows() + m0 + m, out_tile[n * width + m]);
    }
  }
}

// --------------------------------------------------------------- backward

constexpr int kUnits = 7;  // units of kLandmarks landmarks in registers
constexpr int kGroup = 49;
static_assert(kGroup == kUnits * kLandmarks, "a group holds whole units");
// A unit of weights takes eight floats of shared memory, two float4. The last
// float of a row's first unit holds half the row's sum.
constexpr int kUnitPlaces = 8;
constexpr int kPlaces = 56;
static_assert(kPlaces == kUnits * kUnitPlaces, "a row holds whole units");
constexpr int kWeightTokens = 64;  // tokens in shared memory at a time
constexpr int kBackwardThreads = 512;  // of a block, at most
constexpr int kSubsets = 4;        // warps that share 32 features

// (1 + sign(x - y)) / 2 in two instructions. A difference below 1.5e-39 gives a
// value between those of its sign and of 0.
__device__ inline float half_sign(float x, float y) {
  return __saturatef(fmaf(x - y, 3.4028234e38f, 0.5f));
}

// Every kSubsets-th token of a tile, for one lane.
template <typename T>
struct Tokens {
  const float* weights;
  const float* weights_end;
  const T* x;
  long long x_step;
  T* grad_x;
  long long grad_x_step;
  bool writes;   // the last group completes grad_x, and the feature exists
  float* carry;  // sums over earlier groups of landmarks
  int carry_step;
  bool carries;  // there are earlier groups
};

// Adds up both gradients of the tokens and a group of landmarks. The group is
// full if `whole`, and the only one if `single`.
template <bool whole, bool single, typename T>
__device__ inline void pass(Tokens<T> t, int landmarks,
                            const float (&y)[kGroup], float (&sum_y)[kGroup]) {
  if (t.weights >= t.weights_end) return;
  float next_x = to_float(*t.x);
#pragma unroll 1
  do {
    const float x = next_x;
    const float* weights = t.weights;
    t.weights += kSubsets * kPlaces;
    if (t.weights < t.weights_end) {
      t.x += t.x_step;
      next_x = to_float(*t.x);
    }
    float sum_x = 0, row_half = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (whole || unit * kLandmarks < landmarks) {
        const float4 a = load4(weights + unit * kUnitPlaces);
        const float4 b = load4(weights + unit * kUnitPlaces + 4);
        const float w[] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z};
        if (unit == 0) row_half = b.w;
#pragma unroll
        for (int i = 0; i < kLandmarks; ++i) {
          const int m = unit * kLandmarks + i;
          const float s = half_sign(x, y[m]);
          sum_x = fmaf(w[i], s, sum_x);
          sum_y[m] = fmaf(w[i], s, sum_y[m]);
        }
      }
    }
    sum_x -= row_half;
    if (!single) {
      // Only this thread reads and writes the carry.
      if (t.carries) sum_x += *t.carry;
      *t.carry = sum_x;
      t.carry += t.carry_step;
    }
    if (t.writes) store(t.grad_x, sum_x);
    t.grad_x += t.grad_x_step;
  } while (t.weights < t.weights_end);
}

// A block takes tokens_per_block tokens of one matrix, all landmarks, and 32
// features per kSubsets warps. A lane keeps one feature of a group of landmarks
// and their gradients in registers while it visits the tokens. It sums
// w * half_sign, so half the sum of w is subtracted at the end. That half is
// summed in the same order, which makes gradients at ties exactly 0.
template <typename T>
__device__ void backward(const Tensor& grad, const Tensor& x, const Tensor& y,
                         const Tensor& kernel, const Tensor& grad_x,
                         const Tensor& partial, long long tokens_per_block,
                         float scale) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  const int subset = warp % kSubsets, chunk = warp / kSubsets;
  const int chunks = warps / kSubsets;
  float* const weights = reinterpret_cast<float*>(shared);
  // The carry follows the weights, whose place the subsets' sums take later.
  float* const carry = weights + (chunks * kGroup * 32 > kWeightTokens * kPlaces
                                      ? chunks * kGroup * 32
                                      : kWeightTokens * kPlaces);

  const long long tokens = x.rows(), landmarks = y.rows(), depth = x.columns();
  const long long slabs = ceil_divide(depth, chunks * 32);
  const long long splits = partial.size[1];
  const long long slab = blockIdx.x % slabs;
  const long long split = blockIdx.x / slabs % splits;
  const long long matrix = blockIdx.x / slabs / splits;
  const long long first = split * tokens_per_block;
  const long long end = first + tokens_per_block;
  const long long last = end < tokens ? end : tokens;
  const long long own_d = (slab * chunks + chunk) * 32 + lane;
  const bool own_feature = own_d < depth;
  // Lanes beyond the last feature repeat the first and write nothing.
  const long long d = own_feature ? own_d : 0;
  const T* grad_source = grad.matrix<T>(matrix);
  const T* kernel_source = kernel.matrix<T>(matrix);
  const T* x_source = x.matrix<T>(matrix) + d * x.column_stride();
  const T* y_source = y.matrix<T>(matrix) + d * y.column_stride();
  T* grad_x_result = grad_x.matrix<T>(matrix) + d;
  float* share = partial.matrix<float>(matrix * splits + split) + d;

  for (long long m0 = 0; m0 < landmarks; m0 += kGroup) {
    const int count = at_most(landmarks - m0, kGroup);
    float own_y[kGroup], sum_y[kGroup];
#pragma unroll
    for (int m = 0; m < kGroup; ++m) {
      sum_y[m] = 0;
      own_y[m] = m < count ? to_float(y_source[(m0 + m) * y.row_stride()]) : 0.f;
    }
    // Halves of the columns' sums for the places lane and lane + 32.
    float column_half[2] = {};

    for (long long n0 = first; n0 < last; n0 += kWeightTokens) {
      const int rows = at_most(last - n0, kWeightTokens);
      __syncthreads();
      for (int place = lane; place < kPlaces; place += 32) {
        const int in_unit = place % kUnitPlaces;
        const int m = place / kUnitPlaces * kLandmarks + in_unit;
        const bool used = in_unit < kLandmarks && m < count;
        const T* g = grad_source + (n0 + warp) * grad.row_stride() +
                     (m0 + m) * grad.column_stride();
        const T* k = kernel_source + (n0 + warp) * kernel.row_stride() +
                     (m0 + m) * kernel.column_stride();
#pragma unroll 4
        for (int n = warp; n < rows; n += warps) {
          weights[n * kPlaces + place] =
              used ? to_float(*g) * to_float(*k) * scale : 0.f;
          g += warps * grad.row_stride();
          k += warps * kernel.row_stride();
        }
      }
      __syncthreads();
      for (int n = threadIdx.x; n < rows; n += blockDim.x) {
        float half = 0;
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          const float* place = weights + n * kPlaces + unit * kUnitPlaces;
          const float4 a = load4(place), b = load4(place + 4);
          const float w[] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z};
#pragma unroll
          for (int i = 0; i < kLandmarks; ++i) half = fmaf(w[i], 0.5f, half);
        }
        weights[n * kPlaces + kLandmarks] = half;
      }
      for (int n = subset; n < rows; n += kSubsets) {
        for (int i = 0; i < 2; ++i) {
          const int place = lane + 32 * i;
          if (place < kPlaces && place % kUnitPlaces < kLandmarks) {
            column_half[i] =
                fmaf(weights[n * kPlaces + place], 0.5f, column_half[i]);
          }
        }
      }
      __syncthreads();

      Tokens<T> part;
      part.weights = weights + subset * kPlaces;
      part.weights_end = weights + rows * kPlaces;
      part.x = x_source + (n0 + subset) * x.row_stride();
      part.x_step = kSubsets * x.row_stride();
      part.grad_x = grad_x_result + (n0 + subset) * depth;
      part.grad_x_step = kSubsets * depth;
      part.writes = own_feature && m0 + kGroup >= landmarks;
      const int n = static_cast<int>(n0 - first) + subset;
      part.carry = carry + (n * chunks + chunk) * 32 + lane;
      part.carry_step = kSubsets * chunks * 32;
      part.carries = m0 > 0;
      if (landmarks == kGroup) {
        pass<true, true>(part, count, own_y, sum_y);
      } else if (landmarks < kGroup) {
        pass<false, true>(part, count, own_y, sum_y);
      } else {
        pass<false, false>(part, count, own_y, sum_y);
      }
    }

#pragma unroll
    for (int m = 0; m < kGroup; ++m) {
      const int place = m / kLandmarks * kUnitPlaces + m % kLandmarks;
      sum_y[m] -=
          __shfl_sync(0xffffffffu, column_half[place / 32], place % 32);
    }
    // The subsets' sums are added in a fixed order, in place of the weights.
    float* const exchange =
        reinterpret_cast<float*>(shared) + chunk * kGroup * 32 + lane;
    for (int source = 1; source < kSubsets; ++source) {
      __syncthreads();
      if (subset == source) {
#pragma unroll
        for (int m = 0; m < kGroup; ++m) exchange[m * 32] = sum_y[m];
      }
      __syncthreads();
      if (subset == 0) {
#pragma unroll
        for (int m = 0; m < kGroup; ++m) sum_y[m] += exchange[m * 32];
      }
    }
    if (subset == 0 && own_feature) {
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        if (m < count) share[(m0 + m) * depth] = -sum_y[m];
      }
    }
  }
}

// ----------------------------------------------------------------- reduce

constexpr int kReduceParts = 8;

// Sums partial (B * h, splits, M, D) over the splits. A block computes 32
// results, each the sum of kReduceParts sums in a fixed order.
template <typename T>
__device__ void reduce(const Tensor& partial, const Tensor& grad_y) {
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  float* const sums = reinterpret_cast<float*>(shared);
  const long long splits = partial.size[1];
  const long long size = partial.rows() * partial.columns();
  const long long count = partial.size[0] * size;
  const long long index = static_cast<long long>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (index < count) {
    const float* source = static_cast<const float*>(partial.data) +
                          index / size * splits * size + index % size;
#pragma unroll 4
    for (long long split = part; split < splits; split += kReduceParts) {
      sum += source[split * size];
    }
  }
  sums[part * 32 + lane] = sum;
  __syncthreads();
  if (part == 0 && index < count) {
    for (int i = 1; i < kReduceParts; ++i) sum += sums[i * 32 + lane];
    store(static_cast<T*>(grad_y.data) + index, sum);
  }
}

#define LAPLACIAN_KERNELS(suffix, T)                                         \
  extern "C" __global__ void __launch_bounds__(kForwardThreads)              \
      laplacian_forward_##suffix(const Tensor x, const Tensor y,             \
                                 const Tensor out, const float scale) {      \
    forward<T>(x, y, out, scale);                                            \
  }                                                                          \
  extern "C" __global__ void __launch_bounds__(kBackwardThreads)             \
      laplacian_backward_##suffix(                                           \
          const Tensor grad, const Tensor x, const Tensor y,                 \
          const Tensor kernel, const Tensor grad_x, const Tensor partial,    \
          const long long tokens_per_block, const float scale) {             \
    backward<T>(grad, x, y, kernel, grad_x, partial, tokens_per_block,       \
                scale);                                                      \
  }                                                                          \
  extern "C" __global__ void __launch_bounds__(kReduceParts * 32)            \
      laplacian_reduce_##suffix(const Tensor partial, const Tensor grad_y) { \
    reduce<T>(partial, grad_y);                                              \
  }

LAPLACIAN_KERNELS(float32, float)
LAPLACIAN_KERNELS(float16, __half)
LAPLACIAN_KERNELS(bfloat16, __nv_bfloat16)
