// Sixteen floats at a time, 32 registers.
#include "variants.h"

#include "standard_headers.h"

#if defined(__x86_64__)
#include "target.h"
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prfchw")
#define VARIANT avx512
#define VARIANT_ROW kAvx512
#define VARIANT_NAME "AVX-512"
#define VECTOR_BYTES 64
#define BLOCK_ROWS 7
#define BLOCK_VECTORS 3
#define GRADIENT_VECTORS 2
#define HAS_FMA 1
#include "laplacian_kernel.h"
#include "newton_schulz.h"
#include "variant_table.h"
END_TARGET
#endif
