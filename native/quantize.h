// Rows of activations to int8. For each 32: amax = max |x|, scale = amax / 127, codes = nearest even of
// x * (127 / amax), min = scale * float(sum of codes). A block too small to invert (amax < 1e-30)
// is zeros; one with a NaN or an infinity gets zero codes under a scale of NaN or infinity, which makes NaN
// of every product. What pads a row is left alone, so that threads may each write blocks of their own.
#pragma once
#include "kernels.h"
#include "simd/base.h"

namespace pellucid {
namespace {

template <class S>
void quantize(const float* x, int cols, uint8_t* row) {
  using F = typename S::F;
  using I = typename S::I;
  QuantBlock* out = static_cast<QuantBlock*>(static_cast<void*>(row));
  const I magnitude = S::set1_i(0x7fffffff);
  for (int b = 0; b < cols / 32; ++b, ++out) {
    const F lo = S::load(x + 32 * b), hi = S::load(x + 32 * b + 16);
    // As integers magnitudes compare like floats, and NaN is the greatest: it cannot get lost.
    const int32_t bits =
        S::reduce_max_i(S::max_i(S::and_i(S::as_int(lo), magnitude), S::and_i(S::as_int(hi), magnitude)));
    const float amax = as_scalar_float(static_cast<uint32_t>(bits));
    float scale = amax / 127.0f, inverse = 127.0f / amax;
    if (amax < 1e-30f) scale = inverse = 0.0f;
    I q0 = S::zero_i(), q1 = q0;
    if (amax < 0x1.fffffep127f || amax == 0x1.fffffep127f) {
      q0 = S::round_i(S::mul(lo, S::set1(inverse)));
      q1 = S::round_i(S::mul(hi, S::set1(inverse)));
    }
    S::store_i8(out->codes, q0);
    S::store_i8(out->codes + 16, q1);
    const int32_t second = S::reduce_add_i(q1), sum = S::reduce_add_i(q0) + second;
    out->scale = scale;
    out->min = scale * static_cast<float>(sum);
    out->minus_sum = -sum;
    out->minus_sum1 = -second;
  }
}

}  // namespace
}  // namespace pellucid
