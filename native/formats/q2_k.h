// Q2_K: superblocks of 256, value = (d * sc) * q - dmin * mn, with sc and mn of 4 bits for each 16.
// Packed, a panel's superblock: 16 half d | 16 half dmin | 8 times: 2 vectors of pairs | 16 bytes of the
// first 16 k: sc in the low half, mn in the high | 16 of the second. Arithmetic, for each 32, with dot the
// sum of sc * q * a over both halves, an exact integer, and s1 the sum of the second half: part = float(dot)
// * d; part = fma(dmin * mn0, -float(sum), part); part = fma(dmin * (mn1 - mn0), -float(s1), part); acc =
// fma(part, a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q2_K {
  static constexpr int kCols = 256;
  static constexpr Expansion kForm{Chain::two_mins, 0, 45};
  static constexpr int kFileBytes = 84;
  static constexpr int kSub = 128 + 32;
  static constexpr int kBytes = 64 + 8 * kSub;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    put_half(p, lane, block + 80);
    put_half(p + 32, lane, block + 82);
    for (int s = 0; s < 8; ++s) {
      uint8_t* sub = p + 64 + kSub * s;
      sub[128 + lane] = block[2 * s];
      sub[144 + lane] = block[2 * s + 1];
    }
    for (int half = 0; half < 2; ++half)
      put_pairs(p + 64 + 4 * kSub * half, kSub, lane, block + 16 + 32 * half);
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const float d = half_at(p, lane), dmin = half_at(p + 32, lane);
    for (int s = 0; s < 8; ++s) {
      const uint8_t* sub = p + 64 + kSub * s;
      for (int k = 0; k < 32; ++k) {
        const int both = sub[128 + 16 * (k / 16) + lane];
        out[32 * s + k] = (d * static_cast<float>(both & 15)) * static_cast<float>(pair(sub, lane, k)) -
                          dmin * static_cast<float>(both >> 4);
      }
    }
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    using F = typename S::F;
    using I = typename S::I;
    const F d = S::load_f16(halves(p)), dmin = S::load_f16(halves(p + 32));
    p += 64;
    for (int s = 0; s < 8; ++s, p += kSub) {
      const int64_t b = 8 * block + s;
      const I both0 = S::load_u8_i(p + 128), both1 = S::load_u8_i(p + 144);
      const I sc0 = S::and_i(both0, S::set1_i(15)), sc1 = S::and_i(both1, S::set1_i(15));
      auto dots = sums.start(b);
      if constexpr (Sums::kProducts) {
        add_products<0>(dots, sc0, p);
        add_products<1>(dots, sc1, p + 64);
      } else {
        auto second = sums.start(b);
        add_pairs<S, 0>(dots, p);
        add_pairs<S, 1>(second, p + 64);
        dots.weigh(sc0, second, sc1);
      }
      const I mn0 = S::shr_i(both0, 4), mn1 = S::shr_i(both1, 4);
      const F min = S::mul(dmin, S::cvt(mn0)), more = S::mul(dmin, S::cvt(S::sub_i(mn1, mn0)));
      sums.add_with_mins(dots, d, min, more, b);
    }
  }

 private:
  // Codes times their scale, as bytes.
  template <int half, class Dots>
  static PELLUCID_INLINE void add_products(Dots& dots, typename S::I scale, const uint8_t* p) {
    // 0, sc, 2 sc, 3 sc
    const typename S::B table = S::as_bytes(S::mul_i(scale, S::set1_i(0x03020100)));
    const typename S::B pairs = S::load_b(p);
    dots.add(S::lookup4(table, S::template bits<0, 2, 0>(pairs)), 4 * half);
    dots.add(S::lookup4(table, S::template bits<2, 2, 0>(pairs)), 4 * half + 1);
    dots.add(S::lookup4(table, S::template bits<4, 2, 0>(pairs)), 4 * half + 2);
    dots.add(S::lookup4(table, S::template bits<6, 2, 0>(pairs)), 4 * half + 3);
  }
};

}  // namespace
}  // namespace pellucid
