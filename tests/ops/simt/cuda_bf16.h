// __nv_bfloat16 for the emulation: storage and conversions that round to even.
#pragma once

#include "simt.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16(float value) {
  if (std::isnan(value)) return {0x7fff};
  const std::uint32_t bits = bits_of(value);
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
