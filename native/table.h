// Fills the table of one instruction set; the last thing each isa_*.cpp includes. Formats stand in the enum's
// order.
#pragma once
#include "attention.h"
#include "kernels.h"
#include "look.h"
#include "matmul.h"
#include "peaks.h"
#include "quantize.h"
#include "route.h"

namespace pellucid {
namespace {

template <class S>
constexpr Kernels make_table() {
  return {
      .name = S::kName,
      .linear = {linear<FloatTile<S, F32<S>>>, linear<FloatTile<S, F16<S>>>, linear<FloatTile<S, BF16<S>>>,
                 linear_quantized<S, Q4_0<S>>, linear_quantized<S, Q4_1<S>>, linear_quantized<S, Q5_0<S>>,
                 linear_quantized<S, Q5_1<S>>, linear_quantized<S, Q8_0<S>>, linear_quantized<S, Q2_K<S>>,
                 linear_quantized<S, Q3_K<S>>, linear_quantized<S, Q4_K<S>>, linear_quantized<S, Q5_K<S>>,
                 linear_quantized<S, Q6_K<S>>, linear_quantized<S, Q8_K<S>>, linear_quantized<S, IQ4_NL<S>>,
                 linear_quantized<S, IQ4_XS<S>>, linear_quantized<S, MXFP4<S>>, linear_quantized<S, TQ1_0<S>>,
                 linear_quantized<S, TQ2_0<S>>},
      .quantize = quantize<S>,
      .unpack_row = {unpack_floats<F32<S>>, unpack_floats<F16<S>>, unpack_floats<BF16<S>>,
                     unpack_quantized<Q4_0<S>>, unpack_quantized<Q4_1<S>>, unpack_quantized<Q5_0<S>>,
                     unpack_quantized<Q5_1<S>>, unpack_quantized<Q8_0<S>>, unpack_quantized<Q2_K<S>>,
                     unpack_quantized<Q3_K<S>>, unpack_quantized<Q4_K<S>>, unpack_quantized<Q5_K<S>>,
                     unpack_quantized<Q6_K<S>>, unpack_quantized<Q8_K<S>>, unpack_quantized<IQ4_NL<S>>,
                     unpack_quantized<IQ4_XS<S>>, unpack_quantized<MXFP4<S>>, unpack_quantized<TQ1_0<S>>,
                     unpack_quantized<TQ2_0<S>>},
      .rows = row_kernels<S>(),
      .experts = expert_kernels<S>(),
      .look = look<S>,
      .spin = spin<S>,
      .read = read<S>,
  };
}

}  // namespace
}  // namespace pellucid
