// What the three SIMD headers share. Law: code under native/simd, and every template over a SIMD type, lives
// in an anonymous namespace and uses no library function that has a linkable inline body, for a linker merges
// such bodies between translation units and could give AVX-512 code to a CPU without it.
//
// A SIMD type S has static functions over three vector types, the same in every instruction set to the last
// bit:
//   S::F  16 floats (a lane is a weight row, or a column)      S::I  16 int32
//   S::B  64 unsigned bytes: lane r holds bytes 4r..4r+3, that is 4 consecutive k of weight row r
// max and min are a > b ? a : b and a < b ? a : b, so a NaN in b wins and a NaN in a loses.
#pragma once
#include <cstdint>

#define PELLUCID_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define PELLUCID_UNROLL_PRAGMA _Pragma("unroll")
#else
#define PELLUCID_UNROLL_PRAGMA _Pragma("GCC unroll 16")
#endif

namespace pellucid {
namespace {

// Four int8 activations as one word, whatever the alignment.
PELLUCID_INLINE int32_t load_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return word;
}

PELLUCID_INLINE float as_scalar_float(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

PELLUCID_INLINE uint32_t as_scalar_bits(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}

PELLUCID_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace
}  // namespace pellucid
