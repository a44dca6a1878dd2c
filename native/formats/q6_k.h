// Q6_K: superblocks of 256, value = (d * sc) * (q - 32), with an int8 sc for each 16.
// Packed, a panel's superblock: 16 half d | 8 times: 4 vectors of low nibbles | 2 vectors of high pairs
// (vector h, bits 2f..2f+1: codes k = 4(4h + f)..) | 16 int8 sc of the first 16 k | 16 of the second.
// Arithmetic, for each 32, with i0 and i1 the dots of its halves less 32 * their sums:
// acc = fma(fma(float(i1), d * sc1, float(i0) * (d * sc0)), a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q6_K {
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::halves, 5, 63};
  static constexpr int kFileBytes = 210;
  static constexpr int kSub = 256 + 128 + 32;
  static constexpr int kBytes = 32 + 8 * kSub;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    put_half(p, lane, block + 208);
    for (int s = 0; s < 8; ++s) {
      uint8_t* sub = p + 32 + kSub * s;
      put_nibbles(sub, lane, block + 64 * (s / 4) + 32 * (s % 2), s % 4 < 2 ? 0 : 4);
      sub[384 + lane] = block[192 + 2 * s];
      sub[400 + lane] = block[192 + 2 * s + 1];
    }
    for (int half = 0; half < 2; ++half)
      put_pairs(p + 32 + 4 * kSub * half + 256, kSub, lane, block + 128 + 32 * half);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p, lane);
    for (int s = 0; s < 8; ++s) {
      const uint8_t* sub = p + 32 + kSub * s;
      for (int k = 0; k < 32; ++k) {
        const int8_t sc = static_cast<int8_t>(sub[384 + 16 * (k / 16) + lane]);
        out[32 * s + k] = (d * static_cast<float>(sc)) *
                          static_cast<float>((nibble(sub, lane, k) | pair(sub + 256, lane, k) << 4) - 32);
      }
    }
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    using F = typename S::F;
    const F d = S::load_f16(halves(p));
    p += 32;
    for (int s = 0; s < 8; ++s, p += kSub) {
      const int64_t b = 8 * block + s;
      auto first = sums.template start_half<5, 0>(b);
      const typename S::B low_pairs = S::load_b(p + 256);
      first.add(S::or_b(S::low4(S::load_b(p)), S::template bits<0, 2, 4>(low_pairs)), 0);
      first.add(S::or_b(S::low4(S::load_b(p + 64)), S::template bits<2, 2, 4>(low_pairs)), 1);
      first.add(S::or_b(S::low4(S::load_b(p + 128)), S::template bits<4, 2, 4>(low_pairs)), 2);
      first.add(S::or_b(S::low4(S::load_b(p + 192)), S::template bits<6, 2, 4>(low_pairs)), 3);
      const auto part = sums.half(first, S::mul(d, S::load_i8(signed_bytes(p + 384))));
      auto second = sums.template start_half<5, 1>(b);
      const typename S::B pairs = S::load_b(p + 320);
      second.add(S::or_b(S::high4(S::load_b(p)), S::template bits<0, 2, 4>(pairs)), 4);
      second.add(S::or_b(S::high4(S::load_b(p + 64)), S::template bits<2, 2, 4>(pairs)), 5);
      second.add(S::or_b(S::high4(S::load_b(p + 128)), S::template bits<4, 2, 4>(pairs)), 6);
      second.add(S::or_b(S::high4(S::load_b(p + 192)), S::template bits<6, 2, 4>(pairs)), 7);
      sums.add_halves(part, second, S::mul(d, S::load_i8(signed_bytes(p + 400))), b);
    }
  }

 private:
  static PELLUCID_INLINE const int8_t* signed_bytes(const uint8_t* p) {
    return static_cast<const int8_t*>(static_cast<const void*>(p));
  }
};

}  // namespace
}  // namespace pellucid
