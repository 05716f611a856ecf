// X <- X (2I - P X) with P = matrix + ridge * I, as in reference.py. A block
// inverts a matrix. cuda.py launches the kernel, and reads the constants that
// are plain numbers, such as kTile, from this file.

#include "storage.cuh"

extern __shared__ float4 shared[];

constexpr int kTile = 4;  // a thread computes kTile x kTile of a product
constexpr int kMaxWarps = 32;
// If the sum of the squares of the residual is smaller, the next residual is
// below float32 rounding, and the present step is the last that changes X.
constexpr float kConverged = 2.98e-8f;  // 2^-25

// One matrix of the batch, and the layout of shared memory.
template <typename T>
struct Problem {
  const T* matrix;
  long long row_stride, column_stride;
  int size;
  int stride;   // floats between rows in shared memory
  bool keep_p;  // shared memory keeps P, else every step reads it again
  float ridge;
};

struct Product {
  float value[kTile][kTile];
};

// Rows 4i to 4i + 3 of a times columns 4j to 4j + 3 of b. Rows of a symmetric a
// are read as columns, four values at a time.
template <bool symmetric>
__device__ Product multiply(const float* a, const float* b, int i, int j,
                            int size, int stride) {
  Product sum = {};
#pragma unroll 4
  for (int k = 0; k < size; ++k) {
    float4 u;
    if (symmetric) {
      u = load4(a + k * stride + kTile * i);
    } else {
      const float* column = a + kTile * i * stride + k;
      u = make_float4(column[0], column[stride], column[2 * stride],
                      column[3 * stride]);
    }
    const float4 v = load4(b + k * stride + kTile * j);
    const float us[] = {u.x, u.y, u.z, u.w}, vs[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
#pragma unroll
      for (int c = 0; c < kTile; ++c) {
        sum.value[r][c] = fmaf(us[r], vs[c], sum.value[r][c]);
      }
    }
  }
  return sum;
}

__device__ inline void write(const Product& product, float* place, int i,
                             int j, int stride, bool mirror) {
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    const float* v = product.value[r];
    *reinterpret_cast<float4*>(place + (kTile * i + r) * stride + kTile * j) =
        make_float4(v[0], v[1], v[2], v[3]);
  }
  if (mirror) {
#pragma unroll
    for (int c = 0; c < kTile; ++c) {
      *reinterpret_cast<float4*>(place + (kTile * j + c) * stride + kTile * i) =
          make_float4(product.value[0][c], product.value[1][c],
                      product.value[2][c], product.value[3][c]);
    }
  }
}

// Sum over the block, with the same result in every thread.
__device__ float block_sum(float value, float* warp_sums) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  const int warps = blockDim.x / 32;
  for (int warp = 0; warp < warps; ++warp) sum += warp_sums[warp];
  return sum;
}

// Loads P into shared memory, with zeros up to whole tiles.
template <typename T>
__device__ void load_p(const Problem<T>& p, float* place) {
  const int rows = (p.size + kTile - 1) / kTile * kTile;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < rows; i += blockDim.x / 32) {
    for (int j = lane; j < rows; j += 32) {
      float value = 0;
      if (i < p.size && j < p.size) {
        value = to_float(p.matrix[i * p.row_stride + j * p.column_stride]);
        if (i == j) value += p.ridge;
      }
      place[i * p.stride + j] = value;
    }
  }
}

// If P is symmetric, so are X and X P X: values above the diagonal are copied.
// P X is symmetric only as far as P and X commute, and copying half of it
// would amplify rounding until the iteration diverges.
template <bool symmetric, typename T>
__device__ void iterate(const Problem<T>& p, int iterations,
                        float* place_p, float* place_y, float* place_x,
                        float* warp_sums) {
  const int tiles = (p.size + kTile - 1) / kTile, thread = threadIdx.x;
  const int y_row = thread / tiles, y_column = thread % tiles;
  const bool makes_y = y_row < tiles;
  int x_row = y_row, x_column = y_column;
  bool makes_x = makes_y;
  if (symmetric) {
    makes_x = thread < tiles * (tiles + 1) / 2;
    x_row = 0;
    for (x_column = thread; x_column > x_row; x_column -= x_row) ++x_row;
  }

  for (int step = 0; step < iterations; ++step) {
    Product y = {};
    float square = 0;
    if (makes_y) {
      y = multiply<symmetric>(place_p, place_x, y_row, y_column, p.size,
                              p.stride);
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
#pragma unroll
        for (int c = 0; c < kTile; ++c) {
          const int row = kTile * y_row + r, column = kTile * y_column + c;
          const float one = row == column && row < p.size ? 1.f : 0.f;
          square += (one - y.value[r][c]) * (one - y.value[r][c]);
        }
      }
    }
    // Y may overwrite P, which other threads still read.
    if (!p.keep_p) __syncthreads();
    if (makes_y) write(y, place_y, y_row, y_column, p.stride, false);
    const bool converged = block_sum(square, warp_sums) < kConverged;

    Product x = {};
    if (makes_x) {
      x = multiply<symmetric>(place_x, place_y, x_row, x_column, p.size,
                              p.stride);
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
        const float4 old = load4(place_x + (kTile * x_row + r) * p.stride +
                                 kTile * x_column);
        x.value[r][0] = 2 * old.x - x.value[r][0];
        x.value[r][1] = 2 * old.y - x.value[r][1];
        x.value[r][2] = 2 * old.z - x.value[r][2];
        x.value[r][3] = 2 * old.w - x.value[r][3];
      }
    }
    __syncthreads();
    if (symmetric && x_row == x_column) {
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
#pragma unroll
        for (int c = r + 1; c < kTile; ++c) x.value[r][c] = x.value[c][r];
      }
    }
    if (makes_x) {
      write(x, place_x, x_row, x_column, p.stride,
            symmetric && x_row != x_column);
    }
    if (!p.keep_p) load_p(p, place_p);
    __syncthreads();
    if (converged) break;
  }
}

template <typename T>
__device__ void newton_schulz(const Tensor& matrix, const Tensor& out,
                              int stride, bool keep_p, int iterations,
                              bool transpose,
                              float ridge) {
  const Problem<T> p = {matrix.matrix<const T>(blockIdx.x),
                        matrix.row_stride(),
                        matrix.column_stride(),
                        static_cast<int>(matrix.rows()),
                        stride,
                        keep_p,
                        ridge};
  const int rows = (p.size + kTile - 1) / kTile * kTile;
  float* const warp_sums = reinterpret_cast<float*>(shared);
  float* const place_p = warp_sums + kMaxWarps;
  float* const place_x = place_p + rows * p.stride;
  float* const place_y = keep_p ? place_x + rows * p.stride : place_p;
  load_p(p, place_p);
  __syncthreads();

  // The row sums take the place of X until X is known.
  float different = 0;
  for (int i = threadIdx.x; i < p.size; i += blockDim.x) {
    float sum = 0;
    for (int j = 0; j < p.size; ++j) {
      const float value = place_p[i * p.stride + j];
      sum += fabsf(value);
      if (!(value == place_p[j * p.stride + i])) different = 1;
    }
    place_x[i] = sum;
  }
  const bool symmetric = block_sum(different, warp_sums) == 0;
  float largest = 0;
  for (int i = 0; i < p.size; ++i) largest = fmaxf(largest, place_x[i]);
  __syncthreads();
  const float scale = transpose ? 1.8f / (largest * largest) : 1 / largest;
  for (int i = threadIdx.x / 32; i < rows; i += blockDim.x / 32) {
    for (int j = threadIdx.x % 32; j < rows; j += 32) {
      const float one = i == j && i < p.size ? 1.f : 0.f;
      place_x[i * p.stride + j] =
          scale * (transpose ? place_p[j * p.stride + i] : one);
    }
  }
  __syncthreads();

  if (symmetric) {
    iterate<true>(p, iterations, place_p, place_y, place_x, warp_sums);
  } else {
    iterate<false>(p, iterations, place_p, place_y, place_x, warp_sums);
  }

  T* result = out.matrix<T>(blockIdx.x);
  for (int i = threadIdx.x / 32; i < p.size; i += blockDim.x / 32) {
    for (int j = threadIdx.x % 32; j < p.size; j += 32) {
      store(result + i * p.size + j, place_x[i * p.stride + j]);
    }
  }
}

#define NEWTON_SCHULZ_KERNEL(suffix, T)                                      \
  extern "C" __global__ void __launch_bounds__(kMaxWarps * 32)             \
      newton_schulz_##suffix(                                                \
      const Tensor matrix, const Tensor out, const long long stride,         \
      const long long keep_p, const long long iterations,                    \
      const long long transpose, const float ridge) {                        \
    newton_schulz<T>(matrix, out, static_cast<int>(stride), keep_p,          \
                     static_cast<int>(iterations), transpose, ridge);        \
  }

NEWTON_SCHULZ_KERNEL(float32, float)
NEWTON_SCHULZ_KERNEL(float16, __half)
NEWTON_SCHULZ_KERNEL(bfloat16, __nv_bfloat16)
