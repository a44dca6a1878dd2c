// The SIMD type in plain C++: the portable path (aarch64, macOS, old x86), and the meaning of the other two.
#pragma once
#include "simd/base.h"
#include "simd/half.h"

#define PELLUCID_UNROLL  // a vector is a loop here; unrolled, it only makes the code large

namespace pellucid {
namespace {
namespace simd {

struct Scalar {
  static constexpr const char* kName = "scalar";
  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  struct B {
    uint8_t v[64];
  };
  static constexpr int kRowTile = 2;    // rows of activations a quantised kernel takes at once
  static constexpr int kFloatTile = 2;  // the same for float formats
  using Sweep = Scalar;
  static constexpr int kSweepFrom = 4;
  static constexpr int kLanes = 16, kTokens = 4, kTokenStep = 4;
  static constexpr bool kWideDots = true;
  static constexpr int kQueryTile = 1;     // queries that attend together
  static constexpr int kAccumulators = 1;  // sums that attention keeps in registers

#define PELLUCID_LANES(type, expression)              \
  type r;                                             \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r

  // Floats.
  static PELLUCID_INLINE F set1(float x) { PELLUCID_LANES(F, x); }
  static PELLUCID_INLINE F zero() { return set1(0.0f); }
  static PELLUCID_INLINE F load(const float* p) { PELLUCID_LANES(F, p[i]); }
  static PELLUCID_INLINE void store(float* p, F a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static PELLUCID_INLINE F load_n(const float* p, int n) { PELLUCID_LANES(F, i < n ? p[i] : 0.0f); }
  static PELLUCID_INLINE void store_n(float* p, F a, int n) {
    for (int i = 0; i < n; ++i) p[i] = a.v[i];
  }
  static PELLUCID_INLINE F add(F a, F b) { PELLUCID_LANES(F, a.v[i] + b.v[i]); }
  static PELLUCID_INLINE F sub(F a, F b) { PELLUCID_LANES(F, a.v[i] - b.v[i]); }
  static PELLUCID_INLINE F mul(F a, F b) { PELLUCID_LANES(F, a.v[i] * b.v[i]); }
  static PELLUCID_INLINE F div(F a, F b) { PELLUCID_LANES(F, a.v[i] / b.v[i]); }
  static PELLUCID_INLINE F sqrt(F a) { PELLUCID_LANES(F, __builtin_sqrtf(a.v[i])); }
  static PELLUCID_INLINE F fma(F a, F b, F c) { PELLUCID_LANES(F, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
  static PELLUCID_INLINE F max(F a, F b) { PELLUCID_LANES(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
  static PELLUCID_INLINE F min(F a, F b) { PELLUCID_LANES(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
  static PELLUCID_INLINE F zero_where_less(F a, F x, F bound) {
    PELLUCID_LANES(F, x.v[i] < bound.v[i] ? 0.0f : a.v[i]);
  }
  static PELLUCID_INLINE F abs(F a) {
    PELLUCID_LANES(F, as_scalar_float(as_scalar_bits(a.v[i]) & 0x7fffffffu));
  }
  static PELLUCID_INLINE float reduce_add(F a) {
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
    return a.v[0];
  }
  static PELLUCID_INLINE float reduce_max(F a) {
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
  }
  static PELLUCID_INLINE F load_f16(const uint16_t* p) { PELLUCID_LANES(F, half_to_float(p[i])); }
  static PELLUCID_INLINE void store_f16(uint16_t* p, F a) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
  }
  static PELLUCID_INLINE F load_bf16(const uint16_t* p) {
    PELLUCID_LANES(F, as_scalar_float(static_cast<uint32_t>(p[i]) << 16));
  }
  static PELLUCID_INLINE F load_i8(const int8_t* p) { PELLUCID_LANES(F, static_cast<float>(p[i])); }
  static PELLUCID_INLINE F load_u8(const uint8_t* p) { PELLUCID_LANES(F, static_cast<float>(p[i])); }

  // Integers; sums wrap.
  static PELLUCID_INLINE I set1_i(int32_t x) { PELLUCID_LANES(I, x); }
  static PELLUCID_INLINE I zero_i() { return set1_i(0); }
  static PELLUCID_INLINE I load_u8_i(const uint8_t* p) { PELLUCID_LANES(I, p[i]); }
  static PELLUCID_INLINE I load_i(const int32_t* p) { PELLUCID_LANES(I, p[i]); }
  static PELLUCID_INLINE void store_i(int32_t* p, I a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static PELLUCID_INLINE I add_i(I a, I b) {
    PELLUCID_LANES(I, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i])));
  }
  static PELLUCID_INLINE I sub_i(I a, I b) {
    PELLUCID_LANES(I, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i])));
  }
  static PELLUCID_INLINE I mul_i(I a, I b) {
    PELLUCID_LANES(I, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) * static_cast<uint32_t>(b.v[i])));
  }
  static PELLUCID_INLINE I and_i(I a, I b) { PELLUCID_LANES(I, a.v[i] & b.v[i]); }
  static PELLUCID_INLINE I or_i(I a, I b) { PELLUCID_LANES(I, a.v[i] | b.v[i]); }
  static PELLUCID_INLINE I max_i(I a, I b) { PELLUCID_LANES(I, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
  template <int n>
  static PELLUCID_INLINE I shl_i(I a) {
    PELLUCID_LANES(I, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << n));
  }
  // Zeros come in.
  static PELLUCID_INLINE I shr_i(I a, int n) {
    PELLUCID_LANES(I, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> n));
  }
  static PELLUCID_INLINE int32_t reduce_add_i(I a) {
    uint32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += static_cast<uint32_t>(a.v[i]);
    return static_cast<int32_t>(sum);
  }
  static PELLUCID_INLINE int32_t reduce_max_i(I a) {
    int32_t m = a.v[0];
    for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
    return m;
  }
  static PELLUCID_INLINE F cvt(I a) { PELLUCID_LANES(F, static_cast<float>(a.v[i])); }
  // Nearest, ties to even; what does not fit (and NaN) gives INT32_MIN.
  static PELLUCID_INLINE I round_i(F a) { PELLUCID_LANES(I, round_lane(a.v[i])); }
  static PELLUCID_INLINE F as_float(I a) {
    PELLUCID_LANES(F, as_scalar_float(static_cast<uint32_t>(a.v[i])));
  }
  static PELLUCID_INLINE I as_int(F a) { PELLUCID_LANES(I, static_cast<int32_t>(as_scalar_bits(a.v[i]))); }
  // Lanes must lie in [-128, 127].
  static PELLUCID_INLINE void store_i8(int8_t* p, I a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
  }

  // Bytes.
  static PELLUCID_INLINE B load_b(const uint8_t* p) {
    B r;
    for (int i = 0; i < 64; ++i) r.v[i] = p[i];
    return r;
  }
  static PELLUCID_INLINE void store_b(uint8_t* p, B a) {
    for (int i = 0; i < 64; ++i) p[i] = a.v[i];
  }
  static PELLUCID_INLINE B low4(B a) {
    for (int i = 0; i < 64; ++i) a.v[i] = a.v[i] & 15;
    return a;
  }
  static PELLUCID_INLINE B high4(B a) {
    for (int i = 0; i < 64; ++i) a.v[i] = a.v[i] >> 4;
    return a;
  }
  // Bits [from, from + count) of each byte, moved to bit `to`.
  template <int from, int count, int to>
  static PELLUCID_INLINE B bits(B a) {
    for (int i = 0; i < 64; ++i) a.v[i] = static_cast<uint8_t>(((a.v[i] >> from) & ((1 << count) - 1)) << to);
    return a;
  }
  static PELLUCID_INLINE B as_bytes(I a) {
    B r;
    __builtin_memcpy(r.v, a.v, 64);
    return r;
  }
  // The entry of a table of 4 of its weight row for each byte, which must be below 4; byte i of a lane of the
  // table is entry i.
  static PELLUCID_INLINE B lookup4(B table, B a) {
    for (int i = 0; i < 64; ++i) a.v[i] = table.v[i / 4 * 4 + a.v[i]];
    return a;
  }
  static PELLUCID_INLINE B or_b(B a, B b) {
    for (int i = 0; i < 64; ++i) a.v[i] = a.v[i] | b.v[i];
    return a;
  }
  // Sums wrap.
  static PELLUCID_INLINE B add_b(B a, B b) {
    for (int i = 0; i < 64; ++i) a.v[i] = static_cast<uint8_t>(a.v[i] + b.v[i]);
    return a;
  }
  // 1 where a byte is above n, else 0.
  template <int n>
  static PELLUCID_INLINE B above(B a) {
    for (int i = 0; i < 64; ++i) a.v[i] = a.v[i] > n ? 1 : 0;
    return a;
  }
  // The entry of a table of 16 for each byte, which must be below 16.
  static PELLUCID_INLINE B lookup(const uint8_t* table, B a) {
    for (int i = 0; i < 64; ++i) a.v[i] = table[a.v[i]];
    return a;
  }
  // acc[r] + sum of w[4r + i] * a[i] over i < 4, exact; w unsigned and at most 127.
  static PELLUCID_INLINE I dot(I acc, B w, int32_t a) {
    int8_t s[4];
    __builtin_memcpy(s, &a, 4);
    for (int i = 0; i < 16; ++i) {
      const uint8_t* u = w.v + 4 * i;
      acc.v[i] += (u[0] * s[0] + u[1] * s[1]) + (u[2] * s[2] + u[3] * s[3]);
    }
    return acc;
  }
  // The same for weights stored with 128 added, over all 256 values: the dot of w if kDot128Offset, else of w
  // - 128.
  static constexpr bool kDot128Offset = true;
  static PELLUCID_INLINE I dot128(I acc, B w, int32_t a) { return dot(acc, w, a); }

#undef PELLUCID_LANES

 private:
  static PELLUCID_INLINE int32_t round_lane(float x) {
    const float magnitude = as_scalar_float(as_scalar_bits(x) & 0x7fffffffu);
    if (!(magnitude < 0x1p31f)) return INT32_MIN;
    const float whole = magnitude < 0x1p23f ? (magnitude + 0x1p23f) - 0x1p23f : magnitude;
    const int32_t n = static_cast<int32_t>(whole);
    return x < 0 ? -n : n;
  }
};

}  // namespace simd
}  // namespace
}  // namespace pellucid
