// F32, F16 and BF16. Packed, a panel: for each k, the 16 rows' elements as the file has them.
// Arithmetic: even k and odd k are two chains of fma in ascending order; then even + odd.
#pragma once
#include "formats/bytes.h"

namespace pellucid {
namespace {

template <class S>
struct F32 {
  using Element = uint32_t;
  static PELLUCID_INLINE float value(Element e) { return as_scalar_float(e); }
  static PELLUCID_INLINE typename S::F load(const uint8_t* p) {
    return S::load(static_cast<const float*>(static_cast<const void*>(p)));
  }
};

template <class S>
struct F16 {
  using Element = uint16_t;
  static PELLUCID_INLINE float value(Element e) { return half_to_float(e); }
  static PELLUCID_INLINE typename S::F load(const uint8_t* p) { return S::load_f16(halves(p)); }
};

template <class S>
struct BF16 {
  using Element = uint16_t;
  static PELLUCID_INLINE float value(Element e) { return as_scalar_float(static_cast<uint32_t>(e) << 16); }
  static PELLUCID_INLINE typename S::F load(const uint8_t* p) { return S::load_bf16(halves(p)); }
};

}  // namespace
}  // namespace pellucid
