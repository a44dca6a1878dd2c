// The SIMD type on AVX-512 (F, BW, DQ, VL, VNNI): a vector is one register.
#pragma once
#include <immintrin.h>

#include "simd/base.h"

#define PELLUCID_UNROLL PELLUCID_UNROLL_PRAGMA  // loops over registers

namespace pellucid {
namespace {
namespace simd {

struct Avx512 {
  static constexpr const char* kName = "avx512";
  using F = __m512;
  using I = __m512i;
  using B = __m512i;
  static constexpr int kRowTile = 8;
  static constexpr int kFloatTile = 8;
  using Sweep = Avx512;                  // of products with many rows: kLanes rows, kTokens tokens
  static constexpr int kSweepFrom = 24;  // from so many rows on
  static constexpr int kLanes = 16, kTokens = 12, kTokenStep = 4;
  static constexpr bool kWideDots = true;   // dot sums 4 products in 32 bits
  static constexpr int kQueryTile = 8;      // queries that attend together
  static constexpr int kAccumulators = 16;  // sums that attention keeps in registers

  // Floats.
  static PELLUCID_INLINE F set1(float x) { return _mm512_set1_ps(x); }
  static PELLUCID_INLINE F zero() { return _mm512_setzero_ps(); }
  static PELLUCID_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static PELLUCID_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  // Masked lanes are neither read nor written.
  static PELLUCID_INLINE F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
  static PELLUCID_INLINE void store_n(float* p, F a, int n) { _mm512_mask_storeu_ps(p, lanes(n), a); }
  static PELLUCID_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static PELLUCID_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static PELLUCID_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static PELLUCID_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static PELLUCID_INLINE F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static PELLUCID_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static PELLUCID_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static PELLUCID_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  // a, but 0 where x < bound; lanes where x is NaN keep a.
  static PELLUCID_INLINE F zero_where_less(F a, F x, F bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), a);
  }
  static PELLUCID_INLINE F abs(F a) { return _mm512_abs_ps(a); }
  static PELLUCID_INLINE float reduce_add(F a) {
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static PELLUCID_INLINE float reduce_max(F a) {
    const __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static PELLUCID_INLINE F load_f16(const uint16_t* p) { return _mm512_cvtph_ps(load256(p)); }
  static PELLUCID_INLINE void store_f16(uint16_t* p, F a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static PELLUCID_INLINE F load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
  }
  static PELLUCID_INLINE F load_i8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p)));
  }
  static PELLUCID_INLINE F load_u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load128(p)));
  }

  // Integers; sums wrap.
  static PELLUCID_INLINE I set1_i(int32_t x) { return _mm512_set1_epi32(x); }
  static PELLUCID_INLINE I zero_i() { return _mm512_setzero_si512(); }
  static PELLUCID_INLINE I load_u8_i(const uint8_t* p) { return _mm512_cvtepu8_epi32(load128(p)); }
  static PELLUCID_INLINE I load_i(const int32_t* p) { return _mm512_loadu_si512(p); }
  static PELLUCID_INLINE void store_i(int32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static PELLUCID_INLINE I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
  static PELLUCID_INLINE I sub_i(I a, I b) { return _mm512_sub_epi32(a, b); }
  static PELLUCID_INLINE I mul_i(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static PELLUCID_INLINE I and_i(I a, I b) { return _mm512_and_si512(a, b); }
  static PELLUCID_INLINE I or_i(I a, I b) { return _mm512_or_si512(a, b); }
  static PELLUCID_INLINE I max_i(I a, I b) { return _mm512_max_epi32(a, b); }
  template <int n>
  static PELLUCID_INLINE I shl_i(I a) {
    return _mm512_slli_epi32(a, n);
  }
  static PELLUCID_INLINE I shr_i(I a, int n) { return _mm512_srli_epi32(a, static_cast<unsigned>(n)); }
  static PELLUCID_INLINE int32_t reduce_add_i(I a) { return _mm512_reduce_add_epi32(a); }
  static PELLUCID_INLINE int32_t reduce_max_i(I a) { return _mm512_reduce_max_epi32(a); }
  static PELLUCID_INLINE F cvt(I a) { return _mm512_cvtepi32_ps(a); }
  static PELLUCID_INLINE I round_i(F a) { return _mm512_cvtps_epi32(a); }
  static PELLUCID_INLINE F as_float(I a) { return _mm512_castsi512_ps(a); }
  static PELLUCID_INLINE I as_int(F a) { return _mm512_castps_si512(a); }
  static PELLUCID_INLINE void store_i8(int8_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }

  // Bytes.
  static PELLUCID_INLINE B load_b(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static PELLUCID_INLINE void store_b(uint8_t* p, B a) { _mm512_storeu_si512(p, a); }
  static PELLUCID_INLINE B low4(B a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
  static PELLUCID_INLINE B high4(B a) { return bits<4, 4, 0>(a); }
  template <int from, int count, int to>
  static PELLUCID_INLINE B bits(B a) {
    const B mask = _mm512_set1_epi8(static_cast<char>(((1 << count) - 1) << to));
    if constexpr (from > to)
      return _mm512_and_si512(_mm512_srli_epi16(a, from - to), mask);
    else if constexpr (from < to)
      return _mm512_and_si512(_mm512_slli_epi16(a, to - from), mask);
    else
      return _mm512_and_si512(a, mask);
  }
  static PELLUCID_INLINE B as_bytes(I a) { return a; }
  static PELLUCID_INLINE B lookup4(B table, B a) {
    const B first = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);  // of each lane
    return _mm512_shuffle_epi8(table, _mm512_or_si512(a, first));
  }
  static PELLUCID_INLINE B or_b(B a, B b) { return _mm512_or_si512(a, b); }
  static PELLUCID_INLINE B add_b(B a, B b) { return _mm512_add_epi8(a, b); }
  template <int n>
  static PELLUCID_INLINE B above(B a) {
    return _mm512_min_epu8(_mm512_subs_epu8(a, _mm512_set1_epi8(static_cast<char>(n))), _mm512_set1_epi8(1));
  }
  static PELLUCID_INLINE B lookup(const uint8_t* table, B a) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(table)), a);
  }
  static PELLUCID_INLINE I dot(I acc, B w, int32_t a) {
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(a));
  }
  static constexpr bool kDot128Offset = true;
  static PELLUCID_INLINE I dot128(I acc, B w, int32_t a) { return dot(acc, w, a); }

 private:
  static PELLUCID_INLINE __m128i load128(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  static PELLUCID_INLINE __m256i load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static PELLUCID_INLINE __mmask16 lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
};

}  // namespace simd
}  // namespace
}  // namespace pellucid
