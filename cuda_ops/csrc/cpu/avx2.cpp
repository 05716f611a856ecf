// Eight floats at a time.
#include "variants.h"

#include "standard_headers.h"

#if defined(__x86_64__)
#include "target.h"
BEGIN_TARGET("avx2,fma")
#define VARIANT avx2
#define VARIANT_ROW kAvx2
#define VARIANT_NAME "AVX2"
#define VECTOR_BYTES 32
#define BLOCK_ROWS 5
#define BLOCK_VECTORS 2
#define GRADIENT_VECTORS 1
#define HAS_FMA 1
#include "laplacian_kernel.h"
#include "newton_schulz.h"
#include "variant_table.h"
END_TARGET
#endif
