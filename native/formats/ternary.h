// TQ1_0 and TQ2_0: superblocks of 256, value = d * (t - 1).
// Packed, a panel's superblock: 16 half d | TQ1_0: 13 vectors of base-3 fractions, as the file has them, by
// words: vector w < 8, digit n holds k = 32n + 4w.., vector 8 + w holds k = 160 + 16n + 4w.., vector 12 holds
// k = 240 + 4n..; TQ2_0: 8 times 2 vectors of pairs. Arithmetic, for each 32: acc = fma(float(dot - sum), d *
// a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct TQ2_0 {
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::scaled, 0, 2};
  static constexpr int kFileBytes = 66;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    put_half(p, lane, block + 64);
    for (int half = 0; half < 2; ++half) put_pairs(p + 32 + 512 * half, 128, lane, block + 32 * half);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p, lane);
    for (int k = 0; k < 256; ++k)
      out[k] = d * static_cast<float>(pair(p + 32 + 128 * (k / 32), lane, k % 32) - 1);
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    const typename S::F d = S::load_f16(halves(p));
    p += 32;
    for (int s = 0; s < 8; ++s, p += 128) {
      const int64_t b = 8 * block + s;
      auto dots = sums.template start<0>(b);
      add_pairs<S, 0>(dots, p);
      add_pairs<S, 1>(dots, p + 64);
      sums.add_scaled(dots, d, b);
    }
  }
};

template <class S>
struct TQ1_0 {
  using B = typename S::B;
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::scaled, 0, 2};
  static constexpr int kFileBytes = 54;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    put_half(p, lane, block + 52);
    for (int w = 0; w < 13; ++w) put_word(p + 32, w, lane, word_at(block + 4 * w));
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p, lane);
    for (int k = 0; k < 256; ++k) {
      const int word = k < 160 ? k % 32 / 4 : k < 240 ? 8 + (k - 160) % 16 / 4 : 12;
      int n = k < 160 ? k / 32 : k < 240 ? (k - 160) / 16 : (k - 240) / 4;
      uint8_t fraction = p[32 + 64 * word + 4 * lane + k % 4];
      for (; n > 0; --n) fraction = static_cast<uint8_t>(3 * fraction);
      out[k] = d * static_cast<float>((3 * fraction >> 8) - 1);
    }
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    const typename S::F d = S::load_f16(halves(p));
    int64_t b = 8 * block;
    B first[8];
    PELLUCID_UNROLL
    for (int w = 0; w < 8; ++w) first[w] = S::load_b(p + 32 + 64 * w);
    for (int n = 0; n < 5; ++n, ++b) {
      auto dots = sums.template start<0>(b);
      PELLUCID_UNROLL
      for (int w = 0; w < 8; ++w) dots.add(next(first[w]), w);
      sums.add_scaled(dots, d, b);
    }
    B second[4];
    PELLUCID_UNROLL
    for (int w = 0; w < 4; ++w) second[w] = S::load_b(p + 32 + 64 * (8 + w));
    for (int n = 0; n < 2; ++n, ++b) {
      auto dots = sums.template start<0>(b);
      PELLUCID_UNROLL
      for (int w = 0; w < 4; ++w) dots.add(next(second[w]), w);
      PELLUCID_UNROLL
      for (int w = 0; w < 4; ++w) dots.add(next(second[w]), 4 + w);
      sums.add_scaled(dots, d, b);
    }
    B last = S::load_b(p + 32 + 64 * 12);
    auto dots = sums.template start<0>(b);
    PELLUCID_UNROLL
    for (int w = 0; w < 4; ++w) dots.add(next(second[w]), w);
    PELLUCID_UNROLL
    for (int w = 4; w < 8; ++w) dots.add(next(last), w);
    sums.add_scaled(dots, d, b);
  }

 private:
  // The first digit of each fraction, floor(3 f / 256), and the fraction moved on by it.
  static PELLUCID_INLINE B next(B& fraction) {
    const B digit = S::add_b(S::template above<85>(fraction), S::template above<170>(fraction));
    fraction = S::add_b(fraction, S::add_b(fraction, fraction));
    return digit;
  }
};

}  // namespace
}  // namespace pellucid
