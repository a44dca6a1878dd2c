// Q4_0: blocks of 32, value = d * (q - 8).
// Packed, a panel's block: 4 vectors of nibbles (as the file has them, by words) | 16 half d.
// Arithmetic: acc = fma(float(dot - 8 * sum), d * a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q4_0 {
  static constexpr int kCols = 32;
  static constexpr Expansion kForm{Chain::scaled, 3, 15};
  static constexpr int kFileBytes = 18;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    for (int j = 0; j < 4; ++j) put_word(p, j, lane, word_at(block + 2 + 4 * j));
    put_half(p + 256, lane, block);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p + 256, lane);
    for (int k = 0; k < 32; ++k) out[k] = d * static_cast<float>(nibble(p, lane, k) - 8);
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    auto dots = sums.template start<3>(block);
    add_nibbles<S>(dots, p);
    sums.add_scaled(dots, S::load_f16(halves(p + 256)), block);
  }
};

}  // namespace
}  // namespace pellucid
