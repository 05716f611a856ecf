// Compiles an operator's kernels once for each instruction set.
//
// The operator's cpu.cpp defines KERNELS as the header of its kernels, and
// MORE_KERNELS if it has a second one, and includes this file. The headers put
// their code into namespace mmlaplacian::VARIANT. VECTOR_BYTES is the size of
// a vector register.
#pragma once

// All other headers come before the target changes. Otherwise the linker could
// keep the AVX-512 copy of an inline function of the standard library for the
// whole process.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/tensors.h"
#include "common/variants.h"

#define VARIANT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(features)      \
  VARIANT_PRAGMA(clang attribute push( \
      __attribute__((target(features))), apply_to = function))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET(features) \
  _Pragma("GCC push_options") VARIANT_PRAGMA(GCC target(features))
#define END_TARGET _Pragma("GCC pop_options")
#endif

// SSE2 and NEON, which every x86-64 and aarch64 processor has.
#define VARIANT plain
#define VECTOR_BYTES 16
#include KERNELS
#ifdef MORE_KERNELS
#include MORE_KERNELS
#endif

#if defined(__x86_64__)
#undef VARIANT
#undef VECTOR_BYTES
#undef MMLAPLACIAN_VECTORS_H
#undef MMLAPLACIAN_TILES_H
BEGIN_TARGET("avx2,fma")
#define VARIANT avx2
#define VECTOR_BYTES 32
#include KERNELS
#ifdef MORE_KERNELS
#include MORE_KERNELS
#endif
END_TARGET

#undef VARIANT
#undef VECTOR_BYTES
#undef MMLAPLACIAN_VECTORS_H
#undef MMLAPLACIAN_TILES_H
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prfchw")
#define VARIANT avx512
#define VECTOR_BYTES 64
#include KERNELS
#ifdef MORE_KERNELS
#include MORE_KERNELS
#endif
END_TARGET
#endif
