// Q5_1: blocks of 32, value = d * q + m.
// Packed, a panel's block: 4 vectors of nibbles | 1 vector of fifth bits | 16 half d | 16 half m.
// Arithmetic: acc = fma(float(dot), d * a_scale, acc), then acc = fma(m, a_scale * float(sum), acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q5_1 {
  static constexpr int kCols = 32;
  static constexpr Expansion kForm{Chain::with_min, 0, 31};
  static constexpr int kFileBytes = 24;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    for (int j = 0; j < 4; ++j) put_word(p, j, lane, word_at(block + 8 + 4 * j));
    put_packed_bits(p + 256, lane, block + 4);
    put_half(p + 320, lane, block);
    put_half(p + 352, lane, block + 2);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p + 320, lane), m = half_at(p + 352, lane);
    for (int k = 0; k < 32; ++k)
      out[k] = d * static_cast<float>(nibble(p, lane, k) | bit(p + 256, lane, k) << 4) + m;
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    auto dots = sums.start(block);
    add_fives<S>(dots, p, p + 256);
    sums.add_scaled(dots, S::load_f16(halves(p + 320)), block);
    sums.add_min(S::load_f16(halves(p + 352)), block);
  }
};

}  // namespace
}  // namespace pellucid
