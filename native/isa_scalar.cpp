// The portable kernels.
#include "simd/scalar.h"
//
#include "table.h"

namespace pellucid {

const Kernels& scalar_kernels() {
  static constexpr Kernels table = make_table<simd::Scalar>();
  return table;
}

}  // namespace pellucid
