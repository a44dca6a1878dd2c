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
    const uint32_t fifths = word_at(block + 2);
    uint32_t plane = 0;
    // The product spreads 4 bits over 4 bytes.
    for (int j = 0; j < 8; ++j) plane |= ((((fifths >> 4 * j) & 15u) * 0x00204081u) & 0x01010101u) << j;
    put_word(p + 256, 0, lane, plane);
    put_half(p + 320, lane, block);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p + 320, lane);
    for (int k = 0; k < 32; ++k) {
      const int fifth = (p[256 + 4 * lane + k % 4] >> (k / 4)) & 1;
      out[k] = d * static_cast<float>((nibble(p, lane, k) | fifth << 4) - 16);
    }
  }

  template <int NR>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, const Activations& a, int64_t block,
                                         typename S::F (&acc)[NR]) {
    Dots<S, NR> dots;
    dots.template start<4>(a, block);
    const typename S::B plane = S::load_b(p + 256);
    pair<0>(dots, p, plane, a, block);
    pair<1>(dots, p, plane, a, block);
    pair<2>(dots, p, plane, a, block);
    pair<3>(dots, p, plane, a, block);
    add_scaled(dots, S::load_f16(halves(p + 320)), a, block, acc);
  }

 private:
  template <int j, int NR>
  static PELLUCID_INLINE void pair(Dots<S, NR>& dots, const uint8_t* p, typename S::B plane,
                                   const Activations& a, int64_t block) {
    const typename S::B packed = S::load_b(p + 64 * j);
    dots.add(S::or_b(S::low4(packed), S::template bits<j, 1, 4>(plane)), a, block, j);
    dots.add(S::or_b(S::high4(packed), S::template bits<4 + j, 1, 4>(plane)), a, block, 4 + j);
  }
};

}  // namespace
}  // namespace pellucid
