// The kernels for AVX2, FMA, F16C and AVX-VNNI; only this file is compiled with those flags.
#include "simd/avx2_vnni.h"
//
#include "table.h"

namespace pellucid {

const Kernels& avx2_vnni_kernels() {
  static constexpr Kernels table = make_table<simd::Avx2Vnni>();
  return table;
}

}  // namespace pellucid
