// The SIMD type on AVX2 with AVX-VNNI: AVX2, but for the dots.
#pragma once
#include "simd/avx2.h"

namespace pellucid {
namespace {
namespace simd {

struct Avx2VnniHalf : Avx2Half {
  static constexpr int kTokens = 12, kTokenStep = 4;
  static constexpr bool kWideDots = true;
  static PELLUCID_INLINE I dot(I acc, B w, int32_t a) {
    return _mm256_dpbusd_avx_epi32(acc, w, _mm256_set1_epi32(a));
  }
};

struct Avx2Vnni : Avx2 {
  static constexpr const char* kName = "avx2_vnni";
  using Sweep = Avx2VnniHalf;

  static PELLUCID_INLINE I dot(I acc, B w, int32_t a) {
    const __m256i s = _mm256_set1_epi32(a);
    return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, s), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, s)};
  }
  static constexpr bool kDot128Offset = true;
  static PELLUCID_INLINE I dot128(I acc, B w, int32_t a) { return dot(acc, w, a); }
};

}  // namespace simd
}  // namespace
}  // namespace pellucid
