// The kernels for AVX-512 with VNNI; only this file is compiled with those flags.
#include "simd/avx512.h"
//
#include "table.h"

namespace pellucid {

const Kernels& avx512_kernels() {
  static constexpr Kernels table = make_table<simd::Avx512>();
  return table;
}

}  // namespace pellucid
