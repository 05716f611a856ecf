// K[n, m] = exp(-sum_d |x[n, d] - y[m, d]| / bandwidth) and its gradients; the
// formulas stand in cuda_ops/reference.py. cuda_ops/cuda_launch.py mirrors the
// parameter structs and the launch sizes.

#include "storage.cuh"

extern __shared__ float4 shared[];

// A warp owns seven landmarks: 49 of them need no padding.
constexpr int kLandmarks = 7;

// ---------------------------------------------------------------- forward

constexpr int kTokens = 128;  // of a block; four for each lane
constexpr int kDepth = 32;    // features in shared memory at a time
// Keeps float4 alignment and spreads a column over the banks.
constexpr int kRow = kTokens + 4;

struct ForwardParams {
  const void* x;
  const void* y;
  void* out;
  Strides x_strides, y_strides;
  long long heads, tokens, landmarks, depth;
  long long token_tiles, landmark_tiles;
  float scale;  // -1 / bandwidth
  int unused;
};

// One block: kTokens tokens and kLandmarks landmarks for each of its warps.
template <typename T>
__device__ void forward(const ForwardParams& p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  float* const x_tile = reinterpret_cast<float*>(shared);
  float* const y_tile = x_tile + kDepth * kRow + warp * kLandmarks * kDepth;

  const long long tile = blockIdx.x / p.landmark_tiles;
  const long long matrix = tile / p.token_tiles;
  const long long n0 = tile % p.token_tiles * kTokens;
  const long long m0 =
      blockIdx.x % p.landmark_tiles * (warps * kLandmarks);
  const long long own_m0 = m0 + warp * kLandmarks;
  // Eight features of four tokens for each warp: whole sectors are read, and no
  // two lanes write to one bank.
  const int own_n = warp * 4 + lane / 8, own_d = lane % 8;
  const T* x = static_cast<const T*>(p.x) +
               p.x_strides.matrix(matrix, p.heads) +
               (n0 + own_n) * p.x_strides.row + own_d * p.x_strides.column;
  const T* y = static_cast<const T*>(p.y) +
               p.y_strides.matrix(matrix, p.heads) +
               own_m0 * p.y_strides.row + lane * p.y_strides.column;
  const int tokens = at_most(p.tokens - n0, kTokens);
  const int landmarks = at_most(p.landmarks - own_m0, kLandmarks);

  float distance[kLandmarks][4] = {};
  for (long long d0 = 0; d0 < p.depth; d0 += kDepth) {
    const int depth = at_most(p.depth - d0, kDepth);
    __syncthreads();
    const T* place = x;
#pragma unroll 2
    for (int n = own_n; n < kTokens; n += warps * 4) {
#pragma unroll
      for (int d = 0; d < kDepth; d += 8) {
        const bool inside = n < tokens && own_d + d < depth;
        x_tile[(own_d + d) * kRow + n] =
            inside ? to_float(place[d * p.x_strides.column]) : 0.f;
      }
      place += warps * 4 * p.x_strides.row;
    }
#pragma unroll
    for (int m = 0; m < kLandmarks; ++m) {
      const bool inside = m < landmarks && lane < depth;
      y_tile[m * kDepth + lane] =
          inside ? to_float(y[m * p.y_strides.row]) : 0.f;
    }
    x += kDepth * p.x_strides.column;
    y += kDepth * p.y_strides.column;
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

  // Through shared memory, so that rows of the result are written whole.
  __syncthreads();
  const int width = warps * kLandmarks;
  float* const out_tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kLandmarks; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out_tile[(4 * lane + i) * width + warp * kLandmarks + m] =
          expf(distance[m][i] * p.scale);
    }
  }
  __syncthreads();
  T* out = static_cast<T*>(p.out) + (matrix * p.tokens + n0) * p.landmarks;
  for (int n = warp; n < kTokens && n0 + n < p.tokens; n += warps) {
    for (int m = lane; m < width && m0 + m < p.landmarks; m += 32) {
      store(out + n * p.landmarks + m0 + m, out_tile[n * width + m]);
    }
  }
}

// --------------------------------------------------------------- backward

constexpr int kUnits = 7;  // units of kLandmarks landmarks in registers
constexpr int kGroup = kUnits * kLandmarks;
// A unit of weights takes eight places of shared memory, two float4. The last
// place of a row's first unit holds half the row's sum.
constexpr int kUnitPlaces = 8;
constexpr int kPlaces = kUnits * kUnitPlaces;
constexpr int kWeightTokens = 64;  // tokens in shared memory at a time
constexpr int kSubsets = 4;        // warps that share a part of the features

struct BackwardParams {
  const void* grad;
  const void* x;
  const void* y;
  const void* kernel;
  void* grad_x;
  float* partial;  // (B * h, splits, M, D): a block's share of grad_y
  Strides grad_strides, x_strides, y_strides, kernel_strides;
  long long heads, tokens, landmarks, depth;
  long long splits, slabs, tokens_per_block;
  float scale;  // -2 / bandwidth
  int unused;
};

// 1 where x > y, 1/2 where they are equal, 0 where x < y: (1 + sign) / 2 in two
// instructions. Differences below 1.5e-39 give something between.
__device__ inline float half_sign(float x, float y) {
  return __saturatef(fmaf(x - y, 3.4028234e38f, 0.5f));
}

// Every kSubsets-th token of a tile, as one lane of a warp sees them.
template <typename T>
struct Tokens {
  const float* weights;
  const float* weights_end;
  const T* x;
  long long x_step;
  T* grad_x;
  long long grad_x_step;
  bool writes;   // whether grad_x is complete, and the feature exists
  float* carry;  // sums of earlier groups of landmarks
  int carry_step;
  bool carries;  // whether there are such sums
};

// Lets the tokens pass a group of landmarks: with `whole` all kGroup are there,
// with `single` there is no other group.
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
      // Read and written by this thread alone.
      if (t.carries) sum_x += *t.carry;
      *t.carry = sum_x;
      t.carry += t.carry_step;
    }
    if (t.writes) store(t.grad_x, sum_x);
    t.grad_x += t.grad_x_step;
  } while (t.weights < t.weights_end);
}

// One block: tokens_per_block tokens of one matrix, all landmarks, and 32
// features for every kSubsets warps. A lane holds one feature of a group of
// landmarks and of their gradients in registers while tokens pass; sums are
// taken of w * half_sign, so that half the sum of w is subtracted in the end.
// That half is summed in the very same order: gradients at ties are exactly 0.
template <typename T>
__device__ void backward(const BackwardParams& p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  const int subset = warp % kSubsets, chunk = warp / kSubsets;
  const int chunks = warps / kSubsets;
  float* const weights = reinterpret_cast<float*>(shared);
  // Behind the weights, and behind the exchange of the subsets' sums.
  float* const carry = weights + (chunks * kGroup * 32 > kWeightTokens * kPlaces
                                      ? chunks * kGroup * 32
                                      : kWeightTokens * kPlaces);

  const long long slab = blockIdx.x % p.slabs;
  const long long split = blockIdx.x / p.slabs % p.splits;
  const long long matrix = blockIdx.x / p.slabs / p.splits;
  const long long first = split * p.tokens_per_block;
  const long long behind = first + p.tokens_per_block;
  const long long last = behind < p.tokens ? behind : p.tokens;
  const long long own_d = (slab * chunks + chunk) * 32 + lane;
  const bool own_feature = own_d < p.depth;
  // Lanes beyond the last feature repeat the first and write nothing.
  const long long d = own_feature ? own_d : 0;
  const T* grad = static_cast<const T*>(p.grad) +
                  p.grad_strides.matrix(matrix, p.heads);
  const T* kernel = static_cast<const T*>(p.kernel) +
                    p.kernel_strides.matrix(matrix, p.heads);
  const T* x = static_cast<const T*>(p.x) +
               p.x_strides.matrix(matrix, p.heads) + d * p.x_strides.column;
  const T* y = static_cast<const T*>(p.y) +
               p.y_strides.matrix(matrix, p.heads) + d * p.y_strides.column;
  T* grad_x = static_cast<T*>(p.grad_x) + matrix * p.tokens * p.depth + d;
  float* partial = p.partial +
                   (matrix * p.splits + split) * p.landmarks * p.depth + d;

  for (long long m0 = 0; m0 < p.landmarks; m0 += kGroup) {
    const int count = at_most(p.landmarks - m0, kGroup);
    float own_y[kGroup], sum_y[kGroup];
#pragma unroll
    for (int m = 0; m < kGroup; ++m) {
      sum_y[m] = 0;
      own_y[m] = m < count ? to_float(y[(m0 + m) * p.y_strides.row]) : 0.f;
    }
    // Places lane and lane + 32 of the halves of the columns' sums.
    float column_half[2] = {};

    for (long long n0 = first; n0 < last; n0 += kWeightTokens) {
      const int rows = at_most(last - n0, kWeightTokens);
      __syncthreads();
      for (int place = lane; place < kPlaces; place += 32) {
        const int in_unit = place % kUnitPlaces;
        const int m = place / kUnitPlaces * kLandmarks + in_unit;
        const bool used = in_unit < kLandmarks && m < count;
        const T* g = grad + (n0 + warp) * p.grad_strides.row +
                     (m0 + m) * p.grad_strides.column;
        const T* k = kernel + (n0 + warp) * p.kernel_strides.row +
                     (m0 + m) * p.kernel_strides.column;
#pragma unroll 4
        for (int n = warp; n < rows; n += warps) {
          weights[n * kPlaces + place] =
              used ? to_float(*g) * to_float(*k) * p.scale : 0.f;
          g += warps * p.grad_strides.row;
          k += warps * p.kernel_strides.row;
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

      Tokens<T> tokens;
      tokens.weights = weights + subset * kPlaces;
      tokens.weights_end = weights + rows * kPlaces;
      tokens.x = x + (n0 + subset) * p.x_strides.row;
      tokens.x_step = kSubsets * p.x_strides.row;
      tokens.grad_x = grad_x + (n0 + subset) * p.depth;
      tokens.grad_x_step = kSubsets * p.depth;
      tokens.writes = own_feature && m0 + kGroup >= p.landmarks;
      const int n = static_cast<int>(n0 - first) + subset;
      tokens.carry = carry + (n * chunks + chunk) * 32 + lane;
      tokens.carry_step = kSubsets * chunks * 32;
      tokens.carries = m0 > 0;
      if (p.landmarks == kGroup) {
        pass<true, true>(tokens, count, own_y, sum_y);
      } else if (p.landmarks < kGroup) {
        pass<false, true>(tokens, count, own_y, sum_y);
      } else {
        pass<false, false>(tokens, count, own_y, sum_y);
      }
    }

#pragma unroll
    for (int m = 0; m < kGroup; ++m) {
      const int place = m / kLandmarks * kUnitPlaces + m % kLandmarks;
      sum_y[m] -=
          __shfl_sync(0xffffffffu, column_half[place / 32], place % 32);
    }
    // Adds the subsets in their order; the weights are no longer needed.
    float* const exchange =
        reinterpret_cast<float*>(shared) + chunk * kGroup * 32 + lane;
    for (int other = 1; other < kSubsets; ++other) {
      __syncthreads();
      if (subset == other) {
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
        if (m < count) partial[(m0 + m) * p.depth] = -sum_y[m];
      }
    }
  }
}

struct ReduceParams {
  const float* partial;  // (B * h, splits, size)
  void* out;             // (B * h, size)
  long long matrices, splits, size;
};

constexpr int kReduceParts = 8;

// 32 results a block, each the sum of kReduceParts sums in a fixed order.
template <typename T>
__device__ void reduce(const ReduceParams& p) {
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  float* const sums = reinterpret_cast<float*>(shared);
  const long long index = static_cast<long long>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (index < p.matrices * p.size) {
    const float* place = p.partial +
                         index / p.size * p.splits * p.size + index % p.size;
#pragma unroll 4
    for (long long split = part; split < p.splits; split += kReduceParts) {
      sum += place[split * p.size];
    }
  }
  sums[part * 32 + lane] = sum;
  __syncthreads();
  if (part == 0 && index < p.matrices * p.size) {
    for (int other = 1; other < kReduceParts; ++other) {
      sum += sums[other * 32 + lane];
    }
    store(static_cast<T*>(p.out) + index, sum);
  }
}

#define LAPLACIAN_KERNELS(suffix, T)                                       \
  extern "C" __global__ void __launch_bounds__(256)                        \
      laplacian_forward_##suffix(const ForwardParams params) {             \
    forward<T>(params);                                                    \
  }                                                                        \
  extern "C" __global__ void __launch_bounds__(512)                        \
      laplacian_backward_##suffix(const BackwardParams params) {           \
    backward<T>(params);                                                   \
  }                                                                        \
  extern "C" __global__ void __launch_bounds__(256)                        \
      laplacian_reduce_##suffix(const ReduceParams params) {               \
    reduce<T>(params);                                                     \
  }

LAPLACIAN_KERNELS(float32, float)
LAPLACIAN_KERNELS(float16, __half)
LAPLACIAN_KERNELS(bfloat16, __nv_bfloat16)
