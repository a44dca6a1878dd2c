// IQ4_NL and IQ4_XS: 4-bit codes into an uneven table; value = d * table[q], or (d * (sc - 32)) * table[q]
// with a sc of 6 bits for each 32 of a superblock. Packed: IQ4_NL as Q4_0. IQ4_XS, a panel's superblock: 16
// half d | 4 rows of low nibbles and 2 of high pairs of sc (six_bits, as the file has them) | 8 times 4
// vectors of nibbles. Arithmetic, for each 32, with the table raised by 128: acc = fma(float(dot - 128 *
// sum), scale * a_scale, acc).
#pragma once
#include "formats/q4_0.h"

namespace pellucid {
namespace {

// Each value + 128.
alignas(16) constexpr uint8_t kUneven[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                             129, 141, 153, 166, 181, 197, 217, 241};

PELLUCID_INLINE float uneven(int code) { return static_cast<float>(kUneven[code] - 128); }

template <class S, class Dots>
PELLUCID_INLINE void add_uneven(Dots& dots, const uint8_t* p) {
  PELLUCID_UNROLL
  for (int j = 0; j < 4; ++j) {
    const typename S::B packed = S::load_b(p + 64 * j);
    dots.add128(S::lookup(kUneven, S::low4(packed)), j);
    dots.add128(S::lookup(kUneven, S::high4(packed)), 4 + j);
  }
}

template <class S>
struct IQ4_NL {
  static constexpr int kCols = 32;
  static constexpr Expansion kForm{Chain::scaled, 7, 255};
  static constexpr int kFileBytes = 18;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    Q4_0<S>::pack(block, lane, p);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p + 256, lane);
    for (int k = 0; k < 32; ++k) out[k] = d * uneven(nibble(p, lane, k));
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    auto dots = sums.start128(block);
    add_uneven<S>(dots, p);
    sums.add_scaled(dots, S::load_f16(halves(p + 256)), block);
  }
};

template <class S>
struct IQ4_XS {
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::scaled, 7, 255};
  static constexpr int kFileBytes = 136;
  static constexpr int kBytes = kPanel * kFileBytes;
  static constexpr int kLow = 32, kHigh = kLow + 64, kCodes = kHigh + 32;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    put_half(p, lane, block);
    for (int i = 0; i < 4; ++i) p[kLow + kPanel * i + lane] = block[4 + i];
    for (int i = 0; i < 2; ++i) p[kHigh + kPanel * i + lane] = block[2 + i];
    for (int s = 0; s < 8; ++s)
      for (int j = 0; j < 4; ++j)
        put_word(p + kCodes + 256 * s, j, lane, word_at(block + 8 + 16 * s + 4 * j));
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p, lane);
    for (int s = 0; s < 8; ++s) {
      const float step = d * static_cast<float>(six_bits(p + kLow, p + kHigh, lane, s) - 32);
      for (int k = 0; k < 32; ++k) out[32 * s + k] = step * uneven(nibble(p + kCodes + 256 * s, lane, k));
    }
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    const typename S::F d = S::load_f16(halves(p));
    for (int s = 0; s < 8; ++s) {
      const int64_t b = 8 * block + s;
      auto dots = sums.start128(b);
      add_uneven<S>(dots, p + kCodes + 256 * s);
      const typename S::I scale = S::sub_i(six_bits<S>(p + kLow, p + kHigh, s), S::set1_i(32));
      sums.add_scaled(dots, S::mul(d, S::cvt(scale)), b);
    }
  }
};

}  // namespace
}  // namespace pellucid
