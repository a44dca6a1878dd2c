// Q5_K: superblocks of 256, value = (d * sc) * q - dmin * mn, with sc and mn for each 32.
// Packed, a panel's superblock: 16 half d | 16 half dmin | 8 times: 16 sc | 16 mn (bytes) | 4 vectors of
// nibbles | 1 vector of fifth bits. Arithmetic, for each 32: acc = fma(float(dot), (d * sc) * a_scale, acc),
// then acc = fma(-dmin * mn, a_scale * float(sum), acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q5_K {
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::with_min, 0, 31};
  static constexpr int kFileBytes = 176;
  static constexpr int kSub = 16 + 16 + 256 + 64;
  static constexpr int kBytes = 64 + 8 * kSub;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    put_half(p, lane, block);
    put_half(p + 32, lane, block + 2);
    for (int s = 0; s < 8; ++s) {
      uint8_t* sub = p + 64 + kSub * s;
      sub[lane] = static_cast<uint8_t>(packed_scale(block + 4, s));
      sub[16 + lane] = static_cast<uint8_t>(packed_min(block + 4, s));
      put_nibbles(sub + 32, lane, block + 48 + 32 * (s / 2), 4 * (s % 2));
    }
    put_bits(p + 64 + 288, kSub, lane, block + 16);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p, lane), dmin = half_at(p + 32, lane);
    for (int s = 0; s < 8; ++s) {
      const uint8_t* sub = p + 64 + kSub * s;
      const float step = d * static_cast<float>(sub[lane]), low = dmin * static_cast<float>(sub[16 + lane]);
      for (int k = 0; k < 32; ++k)
        out[32 * s + k] =
            step * static_cast<float>(nibble(sub + 32, lane, k) | bit(sub + 288, lane, k) << 4) - low;
    }
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    const typename S::F d = S::load_f16(halves(p));
    const typename S::F minus_dmin = S::sub(S::zero(), S::load_f16(halves(p + 32)));
    p += 64;
    for (int s = 0; s < 8; ++s, p += kSub) {
      const int64_t b = 8 * block + s;
      auto dots = sums.start(b);
      add_fives<S>(dots, p + 32, p + 288);
      sums.add_scaled(dots, S::mul(d, S::load_u8(p)), b);
      sums.add_min(S::mul(minus_dmin, S::load_u8(p + 16)), b);
    }
  }
};

}  // namespace
}  // namespace pellucid
