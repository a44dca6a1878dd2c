// The SIMD type on AVX2, FMA and F16C: a vector is two halves of 256 bits.
#pragma once
#include <immintrin.h>

#include "simd/base.h"

#define PELLUCID_UNROLL PELLUCID_UNROLL_PRAGMA  // loops over registers

namespace pellucid {
namespace {

alignas(64) constexpr int32_t kLaneMask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                               0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0};

namespace simd {

// Half a vector, 8 weight rows: so a tile of tokens fits into 16 registers.
struct Avx2Half {
  using F = __m256;
  using I = __m256i;
  using B = __m256i;
  static constexpr int kLanes = 8, kTokens = 6, kTokenStep = 2;
  // Products are summed by pairs in 16 bits first, as many as fit, and then widened.
  static constexpr bool kWideDots = false;

  static PELLUCID_INLINE F set1(float x) { return _mm256_set1_ps(x); }
  static PELLUCID_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static PELLUCID_INLINE void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static PELLUCID_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static PELLUCID_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static PELLUCID_INLINE F cvt(I a) { return _mm256_cvtepi32_ps(a); }
  static PELLUCID_INLINE I set1_i(int32_t x) { return _mm256_set1_epi32(x); }
  static PELLUCID_INLINE I zero_i() { return _mm256_setzero_si256(); }
  static PELLUCID_INLINE B load_b(const uint8_t* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(p)));
  }
  // Of weights of at most 127; the signed ones are stored with 128 added.
  static PELLUCID_INLINE I pairs(B w, int32_t a) { return _mm256_maddubs_epi16(w, _mm256_set1_epi32(a)); }
  static PELLUCID_INLINE B signed_codes(B w) {
    return _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));
  }
  static PELLUCID_INLINE I signed_pairs(B w, int32_t a) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(a), w));
  }
  static PELLUCID_INLINE I add_pairs(I a, I b) { return _mm256_add_epi16(a, b); }
  static PELLUCID_INLINE I widen(I acc, I pairs) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

struct Avx2 {
  static constexpr const char* kName = "avx2";
  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };
  struct B {
    __m256i lo, hi;
  };
  static constexpr int kRowTile = 4;
  static constexpr int kFloatTile = 2;
  using Sweep = Avx2Half;                  // what products with many rows work with
  static constexpr int kSweepFrom = 8;     // from so many rows on
  static constexpr int kQueryTile = 4;     // queries that attend together
  static constexpr int kAccumulators = 4;  // sums that attention keeps in registers

  // Floats.
  static PELLUCID_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static PELLUCID_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static PELLUCID_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static PELLUCID_INLINE void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  // Masked lanes are neither read nor written.
  static PELLUCID_INLINE F load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, lanes(n, 0)), _mm256_maskload_ps(p + 8, lanes(n, 8))};
  }
  static PELLUCID_INLINE void store_n(float* p, F a, int n) {
    _mm256_maskstore_ps(p, lanes(n, 0), a.lo);
    _mm256_maskstore_ps(p + 8, lanes(n, 8), a.hi);
  }
  static PELLUCID_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static PELLUCID_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static PELLUCID_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static PELLUCID_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static PELLUCID_INLINE F sqrt(F a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
  static PELLUCID_INLINE F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static PELLUCID_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static PELLUCID_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static PELLUCID_INLINE F zero_where_less(F a, F x, F bound) {
    return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, bound.lo, _CMP_NLT_UQ)),
            _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, bound.hi, _CMP_NLT_UQ))};
  }
  static PELLUCID_INLINE F abs(F a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
  }
  static PELLUCID_INLINE float reduce_add(F a) {
    const __m256 x = _mm256_add_ps(a.lo, a.hi);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static PELLUCID_INLINE float reduce_max(F a) {
    const __m256 x = _mm256_max_ps(a.lo, a.hi);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static PELLUCID_INLINE F load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))};
  }
  static PELLUCID_INLINE void store_f16(uint16_t* p, F a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
  }
  static PELLUCID_INLINE F load_bf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p + 8)), 16))};
  }
  static PELLUCID_INLINE F load_i8(const int8_t* p) {
    const __m128i x = load128(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
  }
  static PELLUCID_INLINE F load_u8(const uint8_t* p) {
    const __m128i x = load128(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
  }

  // Integers; sums wrap.
  static PELLUCID_INLINE I set1_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static PELLUCID_INLINE I zero_i() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static PELLUCID_INLINE I load_u8_i(const uint8_t* p) {
    const __m128i x = load128(p);
    return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
  }
  static PELLUCID_INLINE I load_i(const int32_t* p) { return {load256(p), load256(p + 8)}; }
  static PELLUCID_INLINE void store_i(int32_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
  }
  static PELLUCID_INLINE I add_i(I a, I b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  static PELLUCID_INLINE I sub_i(I a, I b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
  }
  static PELLUCID_INLINE I mul_i(I a, I b) {
    return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
  }
  static PELLUCID_INLINE I and_i(I a, I b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
  }
  static PELLUCID_INLINE I or_i(I a, I b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  static PELLUCID_INLINE I max_i(I a, I b) {
    return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
  }
  template <int n>
  static PELLUCID_INLINE I shl_i(I a) {
    return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
  }
  static PELLUCID_INLINE I shr_i(I a, int n) {
    return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
  }
  static PELLUCID_INLINE int32_t reduce_add_i(I a) {
    const __m256i x = _mm256_add_epi32(a.lo, a.hi);
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
  }
  static PELLUCID_INLINE int32_t reduce_max_i(I a) {
    const __m256i x = _mm256_max_epi32(a.lo, a.hi);
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
  }
  static PELLUCID_INLINE F cvt(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static PELLUCID_INLINE I round_i(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
  static PELLUCID_INLINE F as_float(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
  static PELLUCID_INLINE I as_int(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
  static PELLUCID_INLINE void store_i8(int8_t* p, I a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }

  // Bytes.
  static PELLUCID_INLINE B load_b(const uint8_t* p) { return {load256(p), load256(p + 32)}; }
  static PELLUCID_INLINE void store_b(uint8_t* p, B a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.hi);
  }
  static PELLUCID_INLINE B low4(B a) { return mask_b<15>(a); }
  static PELLUCID_INLINE B high4(B a) { return bits<4, 4, 0>(a); }
  template <int from, int count, int to>
  static PELLUCID_INLINE B bits(B a) {
    constexpr int mask = ((1 << count) - 1) << to;
    if constexpr (from > to)
      return mask_b<mask>({_mm256_srli_epi16(a.lo, from - to), _mm256_srli_epi16(a.hi, from - to)});
    else
      return mask_b<mask>({_mm256_slli_epi16(a.lo, to - from), _mm256_slli_epi16(a.hi, to - from)});
  }
  static PELLUCID_INLINE B as_bytes(I a) { return {a.lo, a.hi}; }
  static PELLUCID_INLINE B lookup4(B table, B a) {
    const __m256i first = _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808,
                                           0x04040404, 0);  // of each lane
    return {_mm256_shuffle_epi8(table.lo, _mm256_or_si256(a.lo, first)),
            _mm256_shuffle_epi8(table.hi, _mm256_or_si256(a.hi, first))};
  }
  static PELLUCID_INLINE B or_b(B a, B b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  static PELLUCID_INLINE B add_b(B a, B b) {
    return {_mm256_add_epi8(a.lo, b.lo), _mm256_add_epi8(a.hi, b.hi)};
  }
  template <int n>
  static PELLUCID_INLINE B above(B a) {
    const __m256i limit = _mm256_set1_epi8(static_cast<char>(n)), one = _mm256_set1_epi8(1);
    return {_mm256_min_epu8(_mm256_subs_epu8(a.lo, limit), one),
            _mm256_min_epu8(_mm256_subs_epu8(a.hi, limit), one)};
  }
  static PELLUCID_INLINE B lookup(const uint8_t* table, B a) {
    const __m256i entries = _mm256_broadcastsi128_si256(load128(table));
    return {_mm256_shuffle_epi8(entries, a.lo), _mm256_shuffle_epi8(entries, a.hi)};
  }
  static PELLUCID_INLINE I dot(I acc, B w, int32_t a) {
    const __m256i s = _mm256_set1_epi32(a);
    return {dot_half(acc.lo, w.lo, s), dot_half(acc.hi, w.hi, s)};
  }
  // maddubs saturates above 127, so the weights' signs go over to the activations (whose least value is
  // -127).
  static constexpr bool kDot128Offset = false;
  static PELLUCID_INLINE I dot128(I acc, B w, int32_t a) {
    const __m256i s = _mm256_set1_epi32(a);
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i lo = _mm256_xor_si256(w.lo, flip), hi = _mm256_xor_si256(w.hi, flip);
    return {dot_half(acc.lo, _mm256_abs_epi8(lo), _mm256_sign_epi8(s, lo)),
            dot_half(acc.hi, _mm256_abs_epi8(hi), _mm256_sign_epi8(s, hi))};
  }

 private:
  static PELLUCID_INLINE __m128i load128(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  static PELLUCID_INLINE __m256i load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static PELLUCID_INLINE __m256i lanes(int n, int first) { return load256(kLaneMask + 16 - n + first); }
  template <int mask>
  static PELLUCID_INLINE B mask_b(B a) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
  }
  static PELLUCID_INLINE __m256i dot_half(__m256i acc, __m256i w, __m256i a) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
  }
};

}  // namespace simd
}  // namespace
}  // namespace pellucid
