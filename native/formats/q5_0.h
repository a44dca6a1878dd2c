// Q5_0: blocks of 32, value = d * (q - 16).
// Packed, a panel's block: 4 vectors of nibbles | 1 vector of fifth bits (bit j of a byte belongs to the byte
// in the same place of codes k = 4j..4j+3) | 16 half d. Arithmetic: acc = fma(float(dot - 16 * sum), d *
// a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q5_0 {
  static constexpr int kCols = 32;
  static constexpr Expansion kForm{Chain::scaled, 4, 31};
  static constexpr int kFileBytes = 22;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    for (int j = 0; j < 4; ++j) put_word(p, j, lane, word_at(block + 6 + 4 * j));
    put_packed_bits(p + 256, lane, block + 2);
    put_half(p + 320, lane, block);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p + 320, lane);
    for (int k = 0; k < 32; ++k)
      out[k] = d * static_cast<float>((nibble(p, lane, k) | bit(p + 256, lane, k) << 4) - 16);
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    auto dots = sums.template start<4>(block);
    add_fives<S>(dots, p, p + 256);
    sums.add_scaled(dots, S::load_f16(halves(p + 320)), block);
  }
};

}  // namespace
}  // namespace pellucid
