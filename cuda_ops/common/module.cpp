// Choice of the instruction set, and its C interface for common/compiled.py.
//
// The operators register themselves in their cpu.cpp.
#include <cstring>
#include <vector>

#include "common/variants.h"

namespace mmlaplacian {
namespace {

// compiled.py finds this text in the file before it loads the library.
__attribute__((used)) const char kSources[] =
    "mmlaplacian-sources:" MMLAPLACIAN_SOURCES;

struct NamedVariant {
  const char* name;
  Variant variant;
};

// The variants that this processor can run, fastest first.
std::vector<NamedVariant> usable_variants() {
  std::vector<NamedVariant> found;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    found.push_back({"AVX-512", Variant::kAvx512});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back({"AVX2", Variant::kAvx2});
#endif
  found.push_back({"plain", Variant::kPlain});
  return found;
}

}  // namespace

std::atomic<Variant> variant_in_use{usable_variants().front().variant};

}  // namespace mmlaplacian

#define EXPORT extern "C" __attribute__((visibility("default")))

// Name of the variant in use.
EXPORT const char* mmlaplacian_variant() {
  const mmlaplacian::Variant variant = mmlaplacian::variant_in_use;
  for (const auto& usable : mmlaplacian::usable_variants())
    if (usable.variant == variant) return usable.name;
  return "";
}

// Uses the named variant, or the fastest one for ""; returns 0 if this
// processor cannot run it.
EXPORT int mmlaplacian_choose(const char* name) {
  for (const auto& usable : mmlaplacian::usable_variants())
    if (!*name || !std::strcmp(name, usable.name)) {
      mmlaplacian::variant_in_use = usable.variant;
      return 1;
    }
  return 0;
}
