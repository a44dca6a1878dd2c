// Small pieces that pack and unpack share. Words are little-endian, as in the files.
#pragma once
#include "kernels.h"
#include "simd/half.h"

namespace pellucid {
namespace {

constexpr uint32_t kLowNibbles = 0x0f0f0f0fu;

PELLUCID_INLINE uint32_t word_at(const uint8_t* p) {
  uint32_t w;
  __builtin_memcpy(&w, p, 4);
  return w;
}

// Word j of row `lane` in a run of byte vectors: where its 4 bytes of vector j lie.
PELLUCID_INLINE void put_word(uint8_t* vectors, int j, int lane, uint32_t w) {
  __builtin_memcpy(vectors + 64 * j + 4 * lane, &w, 4);
}

PELLUCID_INLINE void put_half(uint8_t* halves, int lane, const uint8_t* half) {
  __builtin_memcpy(halves + 2 * lane, half, 2);
}

PELLUCID_INLINE float half_at(const uint8_t* halves, int lane) {
  uint16_t h;
  __builtin_memcpy(&h, halves + 2 * lane, 2);
  return half_to_float(h);
}

PELLUCID_INLINE const uint16_t* halves(const uint8_t* p) {
  return static_cast<const uint16_t*>(static_cast<const void*>(p));
}

// Code k of row `lane` in 4 vectors of nibbles: vector j holds k = 4j.. in its low and k = 16 + 4j.. in its
// high half.
PELLUCID_INLINE int nibble(const uint8_t* vectors, int lane, int k) {
  const int byte = vectors[64 * (k % 16 / 4) + 4 * lane + k % 4];
  return k < 16 ? byte & 15 : byte >> 4;
}

}  // namespace
}  // namespace pellucid
