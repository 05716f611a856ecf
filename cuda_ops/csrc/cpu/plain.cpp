// Four floats at a time: what SSE2 and NEON always have.
#include "variants.h"

#include "standard_headers.h"

#define VARIANT plain
#define VARIANT_ROW kPlain
#define VARIANT_NAME "plain"
#define VECTOR_BYTES 16
#define BLOCK_ROWS 4
#define BLOCK_VECTORS 2
#define GRADIENT_VECTORS 1
#include "laplacian_kernel.h"
#include "newton_schulz.h"
#include "variant_table.h"
