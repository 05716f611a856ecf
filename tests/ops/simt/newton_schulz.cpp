#include "simt.h"

#include "newton_schulz.cu"

SIMT_KERNEL(newton_schulz_float32, NewtonSchulzParams)
SIMT_KERNEL(newton_schulz_float16, NewtonSchulzParams)
SIMT_KERNEL(newton_schulz_bfloat16, NewtonSchulzParams)
