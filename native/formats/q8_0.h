// Q8_0: blocks of 32, value = d * q.
// Packed, a panel's block: 8 vectors of q + 128 (vector j: k = 4j..4j+3) | 16 half d.
// Arithmetic: acc = fma(float(dot - 128 * sum), d * a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q8_0 {
  static constexpr int kCols = 32;
  static constexpr Expansion kForm{Chain::scaled, 7, 255};
  static constexpr int kFileBytes = 34;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    for (int j = 0; j < 8; ++j) put_word(p, j, lane, word_at(block + 2 + 4 * j) ^ 0x80808080u);
    put_half(p + 512, lane, block);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p + 512, lane);
    for (int k = 0; k < 32; ++k) out[k] = d * static_cast<float>(p[64 * (k / 4) + 4 * lane + k % 4] - 128);
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    auto dots = sums.start128(block);
    PELLUCID_UNROLL
    for (int j = 0; j < 8; ++j) dots.add128(S::load_b(p + 64 * j), j);
    sums.add_scaled(dots, S::load_f16(halves(p + 512)), block);
  }
};

}  // namespace
}  // namespace pellucid
