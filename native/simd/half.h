// float16 in portable arithmetic, with the bits of the hardware's conversions.
#pragma once
#include "simd/base.h"

namespace pellucid {
namespace {

PELLUCID_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 31)
    return as_scalar_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
  if (exponent != 0) return as_scalar_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return as_scalar_float(sign | as_scalar_bits(magnitude));
}

// Rounds to nearest, ties to even; overflow gives infinity, NaN stays NaN.
PELLUCID_INLINE uint16_t float_to_half(float f) {
  const uint32_t bits = as_scalar_bits(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Adding 0.5 puts the halves' denormal step in the last place of a float; the adder rounds.
    half = as_scalar_bits(as_scalar_float(magnitude) + 0.5f) - as_scalar_bits(0.5f);
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace
}  // namespace pellucid
