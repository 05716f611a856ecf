// __half for the emulation: storage and conversions that round to even.
#pragma once

#include "simt.h"

struct __half {
  std::uint16_t bits;
};

inline float __half2float(__half value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // 2^112 corrects the exponent's bias, also for subnormal numbers.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

inline __half __float2half(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint16_t sign = bits >> 16 & 0x8000u;
  const float size = std::fabs(value);
  if (std::isnan(value)) return {0x7fff};
  if (size >= 65520.f) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (size < 0x1p-14f) {
    // The sum rounds a subnormal number to a multiple of 2^-24.
    const std::uint32_t sum = bits_of(size + 0.5f) - bits_of(0.5f);
    return {static_cast<std::uint16_t>(sign | sum)};
  }
  const std::uint32_t rest = (bits & 0x7fffffffu) - 0x38000000u;
  const std::uint32_t rounded = (rest + 0xfffu + (rest >> 13 & 1u)) >> 13;
  return {static_cast<std::uint16_t>(sign | rounded)};
}
