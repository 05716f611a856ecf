// Instruction sets that kernels are compiled for, and the choice between them.
#pragma once

#include <atomic>

namespace mmlaplacian {

// Each one has a namespace of kernels: plain, avx2 and avx512.
enum class Variant { kPlain, kAvx2, kAvx512 };

extern std::atomic<Variant> variant_in_use;

}  // namespace mmlaplacian

// Address of a kernel of the variant in use: SELECT_VARIANT(forward<float>).
#if defined(__x86_64__)
#define SELECT_VARIANT(...)                                       \
  (variant_in_use == Variant::kAvx512 ? &avx512::__VA_ARGS__      \
   : variant_in_use == Variant::kAvx2 ? &avx2::__VA_ARGS__        \
                                      : &plain::__VA_ARGS__)
#else
#define SELECT_VARIANT(...) (&plain::__VA_ARGS__)
#endif
