// Before the target changes: an inline function of the standard library that
// were compiled for a newer processor could become the whole library's copy.
#pragma once

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
