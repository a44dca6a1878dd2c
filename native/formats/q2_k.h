// Q2_K: superblocks of 256, value = (d * sc) * q - dmin * mn, with sc and mn of 4 bits for each 16.
// Packed, a panel's superblock: 16 half d | 16 half dmin | 8 times: 2 vectors of pairs | 16 bytes of the
// first 16 k: sc in the low half, mn in the high | 16 of the second. Arithmetic, for each 32, with i0 and i1
// the dots of its halves and s0 and s1 their sums: part = float(i0) * (d * sc0), then fma(float(i1), d * sc1,
// part), fma(-dmin * mn0, float(s0), part), fma(-dmin * mn1, float(s1), part); acc = fma(part, a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

template <class S>
struct Q2_K {
  static constexpr int kCols = 256;
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

  template <int NR>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, const Activations& a, int64_t block,
                                         typename S::F (&acc)[NR]) {
    using F = typename S::F;
    const F d = S::load_f16(halves(p));
    const F minus_dmin = S::sub(S::zero(), S::load_f16(halves(p + 32)));
    p += 64;
    for (int s = 0; s < 8; ++s, p += kSub) {
      const int64_t b = 8 * block + s;
      F part[NR];
      {
        Dots<S, NR> dots;
        dots.zero();
        dots.template add_pairs<0>(p, a, b);
        const F scale = S::mul(d, nibbles<0>(p + 128));
        PELLUCID_UNROLL
        for (int i = 0; i < NR; ++i) part[i] = S::mul(S::cvt(dots.v[i]), scale);
      }
      Dots<S, NR> dots;
      dots.zero();
      dots.template add_pairs<1>(p + 64, a, b);
      const F scale = S::mul(d, nibbles<0>(p + 144));
      const F min0 = S::mul(minus_dmin, nibbles<4>(p + 128)), min1 = S::mul(minus_dmin, nibbles<4>(p + 144));
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) {
        const QuantBlock& x = a.at(i, b);
        const int32_t sum1 = -x.minus_sum1, sum0 = -x.minus_sum - sum1;
        part[i] = S::fma(S::cvt(dots.v[i]), scale, part[i]);
        part[i] = S::fma(min0, S::cvt(S::set1_i(sum0)), part[i]);
        part[i] = S::fma(min1, S::cvt(S::set1_i(sum1)), part[i]);
        acc[i] = S::fma(part[i], S::set1(x.scale), acc[i]);
      }
    }
  }

 private:
  template <int shift>
  static PELLUCID_INLINE typename S::F nibbles(const uint8_t* p) {
    return S::cvt(S::and_i(S::shr_i(S::load_u8_i(p), shift), S::set1_i(15)));
  }
};

}  // namespace
}  // namespace pellucid
