// Q3_K: superblocks of 256, value = (d * sc) * (q - 4), with a sc of 6 bits, 32 added, for each 16.
// Packed, a panel's superblock: 16 half d | 8 rows of low nibbles and 4 of high pairs of sc (six_bits) | 8
// times: 2 vectors of low pairs | 1 vector of third bits. Arithmetic, for each 32, with dot the sum of -sc *
// (q - 4) * a, an exact integer: acc = fma(float(dot), -d * a_scale, acc). It is -sc because 128, which is
// -32 * -4, fits no signed byte.
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q3_K {
  using B = typename S::B;
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::scaled, 7, 255};
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

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    using I = typename S::I;
    const typename S::F minus_d = S::sub(S::zero(), S::load_f16(halves(p)));
    const uint8_t* sub = p + kCodes;
    for (int s = 0; s < 8; ++s, sub += kSub) {
      const int64_t b = 8 * block + s;
      const I u0 = six_bits<S>(p + kLow, p + kHigh, 2 * s), u1 = six_bits<S>(p + kLow, p + kHigh, 2 * s + 1);
      if constexpr (Sums::kProducts) {
        auto dots = sums.start128(b);
        add_products<0>(dots, u0, sub);
        add_products<1>(dots, u1, sub);
        sums.add_scaled(dots, minus_d, b);
      } else {
        // Few rows: products of sums are cheaper than products of codes.
        auto dots = sums.template start_half<2, 0>(b);
        auto second = sums.template start_half<2, 1>(b);
        add_codes<0>(dots, sub);
        add_codes<1>(second, sub);
        dots.weigh(S::sub_i(S::set1_i(32), u0), second, S::sub_i(S::set1_i(32), u1));
        sums.add_scaled(dots, minus_d, b);
      }
    }
  }

 private:
  static PELLUCID_INLINE int low(const uint8_t* scales, int s) { return scales[s % 8] >> 4 * (s / 8) & 15; }
  template <int half, class Dots>
  static PELLUCID_INLINE void add_codes(Dots& dots, const uint8_t* sub) {
    const B pairs = S::load_b(sub + 64 * half), thirds = S::load_b(sub + 128);
    constexpr int j = 4 * half;
    dots.add(S::or_b(S::template bits<0, 2, 0>(pairs), S::template bits<j, 1, 2>(thirds)), j);
    dots.add(S::or_b(S::template bits<2, 2, 0>(pairs), S::template bits<j + 1, 1, 2>(thirds)), j + 1);
    dots.add(S::or_b(S::template bits<4, 2, 0>(pairs), S::template bits<j + 2, 1, 2>(thirds)), j + 2);
    dots.add(S::or_b(S::template bits<6, 2, 0>(pairs), S::template bits<j + 3, 1, 2>(thirds)), j + 3);
  }

  // With u = sc + 32, 128 - sc * (q - 4) is the sum of two bytes: for the low pair of q 4u, 3u + 32, 2u + 64
  // or u + 96, for its third bit 0 or 128 - 4u.
  template <int half, class Dots>
  static PELLUCID_INLINE void add_products(Dots& dots, typename S::I u, const uint8_t* sub) {
    using I = typename S::I;
    const B low = S::as_bytes(S::add_i(S::mul_i(u, S::set1_i(0x01020304)), S::set1_i(0x60402000)));
    const I third = S::and_i(S::sub_i(S::set1_i(128), S::template shl_i<2>(u)), S::set1_i(255));
    const B high = S::as_bytes(S::template shl_i<8>(third));
    const B pairs = S::load_b(sub + 64 * half), thirds = S::load_b(sub + 128);
    constexpr int j = 4 * half;
    dots.add128(product<0, j>(low, high, pairs, thirds), j);
    dots.add128(product<2, j + 1>(low, high, pairs, thirds), j + 1);
    dots.add128(product<4, j + 2>(low, high, pairs, thirds), j + 2);
    dots.add128(product<6, j + 3>(low, high, pairs, thirds), j + 3);
  }

  template <int from, int place>
  static PELLUCID_INLINE B product(B low, B high, B pairs, B thirds) {
    return S::add_b(S::lookup4(low, S::template bits<from, 2, 0>(pairs)),
                    S::lookup4(high, S::template bits<place, 1, 0>(thirds)));
  }
};

}  // namespace
}  // namespace pellucid
