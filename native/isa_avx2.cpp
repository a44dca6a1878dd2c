// The kernels for AVX2, FMA and F16C; only this file is compiled with those flags.
#include "simd/avx2.h"
//
#include "table.h"

namespace pellucid {

const Kernels& avx2_kernels() {
  static constexpr Kernels table = make_table<simd::Avx2>();
  return table;
}

}  // namespace pellucid
