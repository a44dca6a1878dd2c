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

// Exchange the fields of a under mask << shift with those of b under mask.
template <int shift>
PELLUCID_INLINE void exchange(uint32_t& a, uint32_t& b, uint32_t mask) {
  const uint32_t t = ((a >> shift) ^ b) & mask;
  b ^= t;
  a ^= t << shift;
}

// 32 bytes of a file with 4 planes of pairs, for 4 times 32 k, into 4 times 2 vectors, `step` bytes apart:
// vector h, bits 2f..2f+1 hold codes k = 4(4h + f)..
PELLUCID_INLINE void put_pairs(uint8_t* vectors, int64_t step, int lane, const uint8_t* bytes) {
  for (int h = 0; h < 2; ++h) {
    uint32_t w[4];
    for (int f = 0; f < 4; ++f) w[f] = word_at(bytes + 16 * h + 4 * f);
    // Word and pair change places.
    exchange<2>(w[0], w[1], 0x33333333u);
    exchange<2>(w[2], w[3], 0x33333333u);
    exchange<4>(w[0], w[2], kLowNibbles);
    exchange<4>(w[1], w[3], kLowNibbles);
    for (int s = 0; s < 4; ++s) put_word(vectors + step * s, h, lane, w[s]);
  }
}

PELLUCID_INLINE int pair(const uint8_t* vectors, int lane, int k) {
  return vectors[64 * (k / 16) + 4 * lane + k % 4] >> 2 * (k / 4 % 4) & 3;
}

// 32 bytes of a file with 8 planes of bits, for 8 times 32 k, into 8 vectors, `step` bytes apart: bit j holds
// codes k = 4j..
PELLUCID_INLINE void put_bits(uint8_t* vectors, int64_t step, int lane, const uint8_t* bytes) {
  uint32_t w[8];
  for (int j = 0; j < 8; ++j) w[j] = word_at(bytes + 4 * j);
  for (int j = 0; j < 8; j += 2) exchange<1>(w[j], w[j + 1], 0x55555555u);
  for (int j = 0; j < 4; ++j) exchange<2>(w[j + j / 2 * 2], w[j + j / 2 * 2 + 2], 0x33333333u);
  for (int j = 0; j < 4; ++j) exchange<4>(w[j], w[j + 4], kLowNibbles);
  for (int s = 0; s < 8; ++s) put_word(vectors + step * s, 0, lane, w[s]);
}

// 4 bytes of a file, a bit for each k, into such a vector.
PELLUCID_INLINE void put_packed_bits(uint8_t* vector, int lane, const uint8_t* bytes) {
  const uint32_t packed = word_at(bytes);
  uint32_t plane = 0;
  // The product spreads 4 bits over 4 bytes.
  for (int j = 0; j < 8; ++j) plane |= ((((packed >> 4 * j) & 15u) * 0x00204081u) & 0x01010101u) << j;
  put_word(vector, 0, lane, plane);
}

PELLUCID_INLINE int bit(const uint8_t* vector, int lane, int k) {
  return vector[4 * lane + k % 4] >> k / 4 & 1;
}

// 32 nibbles that lie in the low (shift 0) or high (4) halves of 32 bytes of a file, into 4 vectors.
PELLUCID_INLINE void put_nibbles(uint8_t* vectors, int lane, const uint8_t* bytes, int shift) {
  for (int j = 0; j < 4; ++j)
    put_word(vectors, j, lane,
             (word_at(bytes + 4 * j) >> shift & kLowNibbles) |
                 (word_at(bytes + 16 + 4 * j) >> shift & kLowNibbles) << 4);
}

// The 12 bytes of Q4_K and Q5_K: 6-bit scales and minima of 8 blocks.
PELLUCID_INLINE int packed_scale(const uint8_t* b, int s) {
  return s < 4 ? b[s] & 63 : (b[s + 4] & 15) | (b[s - 4] >> 6) << 4;
}
PELLUCID_INLINE int packed_min(const uint8_t* b, int s) {
  return s < 4 ? b[s + 4] & 63 : b[s + 4] >> 4 | (b[s] >> 6) << 4;
}

// A 6-bit scale: its low nibble in half s % 2 of row s / 2 of `low`, its high pair at 2 (s % 4) in row s / 4
// of `high`; a row has a byte for each of the 16 weight rows.
template <class S>
PELLUCID_INLINE typename S::I six_bits(const uint8_t* low, const uint8_t* high, int s) {
  using I = typename S::I;
  const I nibble = S::and_i(S::shr_i(S::load_u8_i(low + kPanel * (s / 2)), 4 * (s % 2)), S::set1_i(15));
  const I pair = S::and_i(S::shr_i(S::load_u8_i(high + kPanel * (s / 4)), 2 * (s % 4)), S::set1_i(3));
  return S::or_i(nibble, S::template shl_i<4>(pair));
}

PELLUCID_INLINE int six_bits(const uint8_t* low, const uint8_t* high, int lane, int s) {
  return (low[kPanel * (s / 2) + lane] >> 4 * (s % 2) & 15) |
         (high[kPanel * (s / 4) + lane] >> 2 * (s % 4) & 3) << 4;
}

}  // namespace
}  // namespace pellucid
