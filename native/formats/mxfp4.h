// MXFP4: blocks of 32, value = 2^(e - 128) * table[q], the table being that of e2m1, doubled.
// Packed, a panel's block: 4 vectors of nibbles (as the file has them, by words) | 16 bytes e.
// Arithmetic, with the table raised by 16: acc = fma(float(dot - 16 * sum), 2^(e - 128) * a_scale, acc).
#pragma once
#include "formats/dots.h"

namespace pellucid {
namespace {

// Each value + 16.
alignas(16) constexpr uint8_t kE2m1[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

template <class S>
struct MXFP4 {
  static constexpr int kCols = 32;
  static constexpr Expansion kForm{Chain::scaled, 4, 28};
  static constexpr int kFileBytes = 17;
  static constexpr int kBytes = kPanel * kFileBytes;

  static PELLUCID_INLINE void pack(const uint8_t* block, int lane, uint8_t* p) {
    for (int j = 0; j < 4; ++j) put_word(p, j, lane, word_at(block + 1 + 4 * j));
    p[256 + lane] = block[0];
  }

  static PELLUCID_INLINE void unpack(const uint8_t* p, int lane, float* out) {
    const uint32_t e = p[256 + lane];
    const float d = as_scalar_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (int k = 0; k < 32; ++k) out[k] = d * static_cast<float>(kE2m1[nibble(p, lane, k)] - 16);
  }

  template <class Sums>
  static PELLUCID_INLINE void accumulate(const uint8_t* p, int64_t block, Sums& sums) {
    auto dots = sums.template start<4>(block);
    PELLUCID_UNROLL
    for (int j = 0; j < 4; ++j) {
      const typename S::B packed = S::load_b(p + 64 * j);
      dots.add(S::lookup(kE2m1, S::low4(packed)), j);
      dots.add(S::lookup(kE2m1, S::high4(packed)), 4 + j);
    }
    sums.add_scaled(dots, power(S::load_u8_i(p + 256)), block);
  }

 private:
  // Both forms grow with e; the second wins where the float is subnormal: 2^-128 and 2^-127.
  static PELLUCID_INLINE typename S::F power(typename S::I e) {
    const typename S::I one = S::set1_i(1);
    return S::as_float(
        S::max_i(S::template shl_i<23>(S::sub_i(e, one)), S::template shl_i<21>(S::add_i(e, one))));
  }
};

}  // namespace
}  // namespace pellucid
