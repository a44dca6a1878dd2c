// Q3_K: superblocks of 256, value = (d * sc) * (q - 4), with a sc of 6 bits, 32 added, for each 16.
// Packed, a panel's superblock: 16 half d | 8 rows of low nibbles and 4 of high pairs of sc (six_bits) | 8
// times: 2 vectors of low pairs | 1 vector of third bits. Arithmetic, for each 32, with i0 and i1 the dots of
// its halves less 4 * their sums: acc = fma(fma(float(i1), d * sc1, float(i0) * (d * sc0)), a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q3_K {
  static constexpr int kCols = 256;
  static constexpr int kFileBytes = 110;
  static constexpr int kLow = 32, kHigh = kLow + 128, kCodes = kHigh + 64;
  static constexpr int kSub = 128 + 64;
  static constexpr int kBytes = kCodes + 8 * kSub;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    const uint8_t* scales = block + 96;
    put_half(p, lane, block + 108);
    // The file has scales i and i + 8 in a byte, then i, i + 4, i + 8 and i + 12.
    for (int i = 0; i < 8; ++i)
      p[kLow + kPanel * i + lane] = static_cast<uint8_t>(low(scales, 2 * i) | low(scales, 2 * i + 1) << 4);
    for (int i = 0; i < 4; ++i) {
      int pairs = 0;
      for (int f = 0; f < 4; ++f) pairs |= (scales[8 + f] >> 2 * i & 3) << 2 * f;
      p[kHigh + kPanel * i + lane] = static_cast<uint8_t>(pairs);
    }
    for (int half = 0; half < 2; ++half)
      put_pairs(p + kCodes + 4 * kSub * half, kSub, lane, block + 32 + 32 * half);
    put_bits(p + kCodes + 128, kSub, lane, block);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p, lane);
    for (int s = 0; s < 8; ++s) {
      const uint8_t* sub = p + kCodes + kSub * s;
      for (int k = 0; k < 32; ++k) {
        const int scale = six_bits(p + kLow, p + kHigh, lane, 2 * s + k / 16) - 32;
        const int code = (pair(sub, lane, k) | bit(sub + 128, lane, k) << 2) - 4;
        out[32 * s + k] = (d * static_cast<float>(scale)) * static_cast<float>(code);
      }
    }
  }

  template <int NR>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, const Activations& a, int64_t block,
                                         typename S::F (&acc)[NR]) {
    using F = typename S::F;
    using B = typename S::B;
    const F d = S::load_f16(halves(p));
    const uint8_t* sub = p + kCodes;
    for (int s = 0; s < 8; ++s, sub += kSub) {
      const int64_t b = 8 * block + s;
      const B thirds = S::load_b(sub + 128);
      F part[NR];
      {
        Dots<S, NR> dots;
        dots.template start_half<2, 0>(a, b);
        const B pairs = S::load_b(sub);
        dots.add(S::or_b(S::template bits<0, 2, 0>(pairs), S::template bits<0, 1, 2>(thirds)), a, b, 0);
        dots.add(S::or_b(S::template bits<2, 2, 0>(pairs), S::template bits<1, 1, 2>(thirds)), a, b, 1);
        dots.add(S::or_b(S::template bits<4, 2, 0>(pairs), S::template bits<2, 1, 2>(thirds)), a, b, 2);
        dots.add(S::or_b(S::template bits<6, 2, 0>(pairs), S::template bits<3, 1, 2>(thirds)), a, b, 3);
        const F scale = scaled(d, p, 2 * s);
        PELLUCID_UNROLL
        for (int i = 0; i < NR; ++i) part[i] = S::mul(S::cvt(dots.v[i]), scale);
      }
      Dots<S, NR> dots;
      dots.template start_half<2, 1>(a, b);
      const B pairs = S::load_b(sub + 64);
      dots.add(S::or_b(S::template bits<0, 2, 0>(pairs), S::template bits<4, 1, 2>(thirds)), a, b, 4);
      dots.add(S::or_b(S::template bits<2, 2, 0>(pairs), S::template bits<5, 1, 2>(thirds)), a, b, 5);
      dots.add(S::or_b(S::template bits<4, 2, 0>(pairs), S::template bits<6, 1, 2>(thirds)), a, b, 6);
      dots.add(S::or_b(S::template bits<6, 2, 0>(pairs), S::template bits<7, 1, 2>(thirds)), a, b, 7);
      const F scale = scaled(d, p, 2 * s + 1);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i)
        acc[i] = S::fma(S::fma(S::cvt(dots.v[i]), scale, part[i]), S::set1(a.at(i, b).scale), acc[i]);
    }
  }

 private:
  static PELLUCID_INLINE int low(const uint8_t* scales, int s) { return scales[s % 8] >> 4 * (s / 8) & 15; }
  static PELLUCID_INLINE typename S::F scaled(typename S::F d, const uint8_t* p, int s) {
    return S::mul(d, S::cvt(S::sub_i(six_bits<S>(p + kLow, p + kHigh, s), S::set1_i(32))));
  }
};

}  // namespace
}  // namespace pellucid
