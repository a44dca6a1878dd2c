// Q8_K: superblocks of 256, value = d * q, with a float d. The file's sums of codes follow from the codes and
// are dropped. Packed, a panel's superblock: 16 float d | 64 vectors of q + 128 (vector j: k = 4j..4j+3).
// Arithmetic, for each 32: acc = fma(float(dot - 128 * sum), d * a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q8_K {
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::scaled, 7, 255};
  static constexpr int kFileBytes = 292;
  static constexpr int kBytes = 64 + 64 * 64;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    put_word(p, 0, lane, word_at(block));
    for (int j = 0; j < 64; ++j) put_word(p + 64, j, lane, word_at(block + 4 + 4 * j) ^ 0x80808080u);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = as_scalar_float(word_at(p + 4 * lane));
    for (int k = 0; k < 256; ++k)
      out[k] = d * static_cast<float>(p[64 + 64 * (k / 4) + 4 * lane + k % 4] - 128);
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    const typename S::F d = S::load(static_cast<const float*>(static_cast<const void*>(p)));
    p += 64;
    for (int s = 0; s < 8; ++s, p += 512) {
      const int64_t b = 8 * block + s;
      auto dots = sums.start128(b);
      PELLUCID_UNROLL
      for (int j = 0; j < 8; ++j) dots.add128(S::load_b(p + 64 * j), j);
      sums.add_scaled(dots, d, b);
    }
  }
};

}  // namespace
}  // namespace pellucid
