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

  template <int NR>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, const Activations& a, int64_t block,
                                         typename S::F (&acc)[NR]) {
    Dots<S, NR> dots;
    dots.template start<4>(a, block);
    dots.add_fives(p, p + 256, a, block);
    add_scaled(dots, S::load_f16(halves(p + 320)), a, block, acc);
  }
};

}  // namespace
}  // namespace pellucid
