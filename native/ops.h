// Row-wise kernels over a SIMD type S: norms, rotation, activations, cache writes.
// Law: a row's result depends on that row alone. Sums run over 16 lanes, vector after vector, then the fixed
// tree of S::reduce_add; every fma is written where it is meant. Included only by isa_*.cpp.
#pragma once

#include "row_kernels.h"
#include "simd/base.h"

namespace pellucid {
namespace {

// e^x to about 1 ulp: x = n ln 2 + r, a polynomial in r (Cephes' coefficients), 2^n added to the exponent.
// Below -87.3 the result is 0 (no denormals), above 88.3 it stays there; NaN stays NaN.
template <class S>
inline typename S::F exp(typename S::F x0) {
  using F = typename S::F;
  const F x = S::max(S::set1(-87.3f), S::min(S::set1(88.3f), x0));
  const typename S::I n = S::round_i(S::mul(x, S::set1(1.44269504f)));
  const F nf = S::cvt(n);
  F r = S::fma(nf, S::set1(-0.693359375f), x);
  r = S::fma(nf, S::set1(2.12194440e-4f), r);
  F p = S::set1(1.9875691500e-4f);
  p = S::fma(p, r, S::set1(1.3981999507e-3f));
  p = S::fma(p, r, S::set1(8.3334519073e-3f));
  p = S::fma(p, r, S::set1(4.1665795894e-2f));
  p = S::fma(p, r, S::set1(1.6666665459e-1f));
  p = S::fma(p, r, S::set1(5.0000001201e-1f));
  p = S::fma(p, S::mul(r, r), S::add(r, S::set1(1.0f)));
  const F scale = S::as_float(S::template shl_i<23>(S::add_i(n, S::set1_i(127))));
  return S::zero_where_less(S::mul(p, scale), x0, S::set1(-87.3f));
}

template <class S>
inline float exp1(float x) {
  float lanes[16];
  S::store(lanes, exp<S>(S::set1(x)));
  return lanes[0];
}

// Calls step(i, count) for vectors of 16 values, the last one shorter.
template <class Step>
inline void by_16(int n, Step&& step) {
  int i = 0;
  for (; i + 16 <= n; i += 16) step(i, 16);
  if (i < n) step(i, n - i);
}

template <class S>
inline typename S::F load_upto(const float* p, int count) {
  return count == 16 ? S::load(p) : S::load_n(p, count);
}

template <class S>
inline void store_upto(float* p, typename S::F v, int count) {
  if (count == 16) {
    S::store(p, v);
  } else {
    S::store_n(p, v, count);
  }
}

// out = x / sqrt(mean(x²) + eps), times weight where there is one.
template <class S>
void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  using F = typename S::F;
  F sum = S::zero();
  by_16(n, [&](int i, int count) {
    const F v = load_upto<S>(x + i, count);
    sum = S::fma(v, v, sum);
  });
  const F scale = S::set1(1.0f / __builtin_sqrtf(S::reduce_add(sum) / static_cast<float>(n) + eps));
  by_16(n, [&](int i, int count) {
    F v = S::mul(load_upto<S>(x + i, count), scale);
    if (weight) v = S::mul(v, load_upto<S>(weight + i, count));
    store_upto<S>(out + i, v, count);
  });
}

// The same of x less its mean.
template <class S>
void layer_norm(const float* x, const float* weight, float eps, int n, float* out) {
  using F = typename S::F;
  F total = S::zero();
  by_16(n, [&](int i, int count) { total = S::add(total, load_upto<S>(x + i, count)); });
  float means[16];
  S::store(means, S::set1(S::reduce_add(total) / static_cast<float>(n)));
  F sum = S::zero();
  by_16(n, [&](int i, int count) {
    const F v = S::sub(load_upto<S>(x + i, count), load_upto<S>(means, count));
    sum = S::fma(v, v, sum);
  });
  const F mean = S::load(means);
  const F scale = S::set1(1.0f / __builtin_sqrtf(S::reduce_add(sum) / static_cast<float>(n) + eps));
  by_16(n, [&](int i, int count) {
    F v = S::mul(S::sub(load_upto<S>(x + i, count), mean), scale);
    if (weight) v = S::mul(v, load_upto<S>(weight + i, count));
    store_upto<S>(out + i, v, count);
  });
}

template <class S>
void multiply(const float* x, const float* weight, int n, float* out) {
  by_16(n, [&](int i, int count) {
    store_upto<S>(out + i, S::mul(load_upto<S>(x + i, count), load_upto<S>(weight + i, count)), count);
  });
}

template <class S>
void add(const float* a, const float* b, int n, float* out) {
  by_16(n, [&](int i, int count) {
    store_upto<S>(out + i, S::add(load_upto<S>(a + i, count), load_upto<S>(b + i, count)), count);
  });
}

template <class S>
void scale(const float* x, float factor, int n, float* out) {
  by_16(n, [&](int i, int count) {
    store_upto<S>(out + i, S::mul(load_upto<S>(x + i, count), S::set1(factor)), count);
  });
}

// cap · tanh(x / cap), with tanh(y) = 1 - 2 / (1 + e^2y): right to 1e-7 of the cap.
template <class S>
void soft_cap(const float* x, float cap, int n, float* out) {
  using F = typename S::F;
  const F one = S::set1(1.0f), two = S::set1(2.0f), bound = S::set1(cap);
  by_16(n, [&](int i, int count) {
    const F y = S::div(load_upto<S>(x + i, count), bound);
    const F tanh = S::sub(one, S::div(two, S::add(one, exp<S>(S::add(y, y)))));
    store_upto<S>(out + i, S::mul(tanh, bound), count);
  });
}

// x · sigmoid(x); GELU's tanh form is x · sigmoid(2 √(2/π) (x + 0.044715 x³)).
template <class S>
PELLUCID_INLINE typename S::F activation(Activation kind, typename S::F x) {
  using F = typename S::F;
  F inner = x;
  if (kind == Activation::gelu_tanh) {
    const F cubic = S::mul(S::mul(S::mul(x, x), x), S::set1(0.044715f));
    inner = S::mul(S::add(x, cubic), S::set1(1.59576912f));
  }
  const F one = S::set1(1.0f);
  return S::mul(x, S::div(one, S::add(one, exp<S>(S::sub(S::zero(), inner)))));
}

template <class S>
void activate(Activation kind, const float* x, int n, float* out) {
  by_16(n, [&](int i, int count) {
    store_upto<S>(out + i, activation<S>(kind, load_upto<S>(x + i, count)), count);
  });
}

template <class S>
void glu(Activation kind, const float* gate, const float* up, int n, float* out) {
  using F = typename S::F;
  if (kind == Activation::clamped) {
    // g · sigmoid(1.702 g) · (u + 1), g at most 7, u within ±7. The bound stands first: then NaN stays NaN.
    const F one = S::set1(1.0f), bound = S::set1(7.0f);
    by_16(n, [&](int i, int count) {
      const F g = S::min(bound, load_upto<S>(gate + i, count));
      const F u = S::max(S::set1(-7.0f), S::min(bound, load_upto<S>(up + i, count)));
      const F swish = S::div(g, S::add(one, exp<S>(S::mul(g, S::set1(-1.702f)))));
      store_upto<S>(out + i, S::mul(swish, S::add(u, one)), count);
    });
    return;
  }
  by_16(n, [&](int i, int count) {
    const F active = activation<S>(kind, load_upto<S>(gate + i, count));
    store_upto<S>(out + i, S::mul(active, load_upto<S>(up + i, count)), count);
  });
}

// Rotates pairs (j, j + half) of one head; values from 2·half on are copied.
template <class S>
void rope(const float* x, const float* cos, const float* sin, int half, int d_head, float* out) {
  using F = typename S::F;
  by_16(half, [&](int i, int count) {
    const F a = load_upto<S>(x + i, count), b = load_upto<S>(x + half + i, count);
    const F c = load_upto<S>(cos + i, count), s = load_upto<S>(sin + i, count);
    store_upto<S>(out + i, S::sub(S::mul(a, c), S::mul(b, s)), count);
    store_upto<S>(out + half + i, S::add(S::mul(b, c), S::mul(a, s)), count);
  });
  for (int i = 2 * half; i < d_head; ++i) out[i] = x[i];
}

// A row of d values to halves; d16 = d rounded up to 16 halves are written.
template <class S>
inline void to_f16(const float* x, int d, uint16_t* out) {
  by_16(d, [&](int i, int count) { S::store_f16(out + i, load_upto<S>(x + i, count)); });
}

// One block of 32 to int8 codes and a half scale (the q8_0 of formats/rows.py). Returns the scale's bits.
template <class S>
inline uint16_t to_q8_0(const float* x, int8_t* codes) {
  using F = typename S::F;
  const F a = S::load(x), b = S::load(x + 16);
  const float amax = S::reduce_max(S::max(S::abs(a), S::abs(b)));
  uint16_t half[16];
  S::store_f16(half, S::set1(amax / 127.0f));
  float d[16];
  S::store(d, S::load_f16(half));
  const F inverse = S::set1(d[0] > 0.0f ? 1.0f / d[0] : 0.0f);
  const F low = S::set1(-127.0f), high = S::set1(127.0f);
  S::store_i8(codes, S::round_i(S::min(high, S::max(low, S::mul(a, inverse)))));
  S::store_i8(codes + 16, S::round_i(S::min(high, S::max(low, S::mul(b, inverse)))));
  return half[0];
}

// Writes K and V of one KV head of one token to slot `slot` of its page.
template <class S>
void store_kv(const KvLayout& kv, uint8_t* k_page, uint8_t* v_page, int slot, const float* k,
              const float* v) {
  const int d = kv.d_head, lane = slot % kKeyGroup;
  uint8_t* group = k_page + slot / kKeyGroup * kv.k_group_bytes();
  if (kv.format == KvFormat::f16) {
    uint16_t row[kMaxHead + 16];
    to_f16<S>(k, d, row);
    auto* keys = reinterpret_cast<uint16_t*>(group);
    for (int i = 0; i < d; ++i) keys[i * kKeyGroup + lane] = row[i];
    to_f16<S>(v, d, reinterpret_cast<uint16_t*>(v_page + int64_t{slot} * kv.v_stride()));
    return;
  }
  int8_t codes[kMaxHead];
  auto* key_scales = reinterpret_cast<uint16_t*>(group + int64_t{kKeyGroup} * d);
  auto* value_scales = reinterpret_cast<uint16_t*>(v_page + int64_t{kv.page_size} * d) + slot * (d / 32);
  auto* value_codes = reinterpret_cast<int8_t*>(v_page + int64_t{slot} * d);
  for (int b = 0; b < d / 32; ++b) {
    key_scales[b * kKeyGroup + lane] = to_q8_0<S>(k + 32 * b, codes + 32 * b);
    value_scales[b] = to_q8_0<S>(v + 32 * b, value_codes + 32 * b);
  }
  for (int i = 0; i < d; ++i) group[i * kKeyGroup + lane] = static_cast<uint8_t>(codes[i]);
}

}  // namespace
}  // namespace pellucid
