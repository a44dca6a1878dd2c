// The expanded form of a panel, for products with many rows of activations: what `accumulate` of a format
// feeds to the dots, written out once and read for every tile of tokens.
//
// Layout of 32 k of a panel (a multiple of 64 bytes, 64-byte aligned):
//   w      8 vectors of 64 unsigned bytes; vector j, byte 4r + i: the code of row r, k = 4j + i
//   then vectors of 16 floats, a lane a row, by the format's chain:
//     scaled    scale          acc = fma(float(dot - (sum << shift)), scale * a_scale, acc)
//     with_min  scale, min     acc = fma(float(dot), scale * a_scale, acc); acc = fma(min, a_min, acc)
//     halves    scale0, scale1, of 16 k each, with i0 and i1 the dots of the halves less their sums << shift:
//               acc = fma(fma(float(i1), scale1, float(i0) * scale0), a_scale, acc)
//     two_mins  d, min, more   part = float(dot) * d; part = fma(min, float(-sum), part);
//                              part = fma(more, float(-sum1), part); acc = fma(part, a_scale, acc)
// where a_scale, a_min = a_scale * float(sum), -sum and -sum1 are those of QuantBlock. Blocks follow each
// other in ascending k.
#pragma once
#include "kernels.h"
#include "simd/base.h"

namespace pellucid {
namespace {

enum class Chain { scaled, with_min, halves, two_mins };

// Fmt::kForm
struct Expansion {
  Chain chain;
  int shift;     // codes have 2^shift added; of scaled and halves
  int max_code;  // no byte of w is greater
};

constexpr int kExpandedScales = 512;  // where the vectors of floats begin

constexpr int expanded_bytes(Chain chain) {
  return kExpandedScales + 64 * (chain == Chain::scaled ? 1 : chain == Chain::two_mins ? 3 : 2);
}

// Takes what a format's `accumulate` says, and writes it down at `out`, which is where block 0 goes; `minus`
// is taken off the codes, which wrap to signed bytes.
template <class S, Chain chain, int minus>
struct Expander {
  static constexpr bool kProducts = true;
  static constexpr int kBytes = expanded_bytes(chain);
  uint8_t* out;

  struct Dots {
    uint8_t* to;
    PELLUCID_INLINE void add(typename S::B w, int j) {
      if constexpr (minus != 0)
        w = S::add_b(w, S::as_bytes(S::set1_i(static_cast<int32_t>(0x01010101u * (256u - minus)))));
      S::store_b(to + 64 * j, w);
    }
    PELLUCID_INLINE void add128(typename S::B w, int j) { add(w, j); }
  };
  struct Half {};

  PELLUCID_INLINE Dots start(int64_t block) { return {out + block * kBytes}; }
  template <int shift>
  PELLUCID_INLINE Dots start(int64_t block) {
    return {out + block * kBytes};
  }
  PELLUCID_INLINE Dots start128(int64_t block) { return {out + block * kBytes}; }
  template <int shift, int half>
  PELLUCID_INLINE Dots start_half(int64_t block) {
    return {out + block * kBytes};
  }
  PELLUCID_INLINE void add_scaled(const Dots& dots, typename S::F scale, int64_t) { put(dots.to, 0, scale); }
  PELLUCID_INLINE void add_min(typename S::F min, int64_t block) { put(out + block * kBytes, 1, min); }
  PELLUCID_INLINE Half half(const Dots& dots, typename S::F scale) {
    put(dots.to, 0, scale);
    return {};
  }
  PELLUCID_INLINE void add_halves(Half, const Dots& dots, typename S::F scale, int64_t) {
    put(dots.to, 1, scale);
  }
  PELLUCID_INLINE void add_with_mins(const Dots& dots, typename S::F d, typename S::F min, typename S::F more,
                                     int64_t) {
    put(dots.to, 0, d);
    put(dots.to, 1, min);
    put(dots.to, 2, more);
  }

 private:
  static PELLUCID_INLINE void put(uint8_t* to, int i, typename S::F x) {
    S::store(static_cast<float*>(static_cast<void*>(to + kExpandedScales)) + kPanel * i, x);
  }
};

// `blocks` of Fmt from packed p on, to kCols / 32 expanded blocks each.
template <class S, class Fmt, int minus = 0>
PELLUCID_INLINE void expand(const uint8_t* p, int64_t blocks, uint8_t* out) {
  Expander<S, Fmt::kForm.chain, minus> to{out};
  for (int64_t b = 0; b < blocks; ++b, p += Fmt::kBytes) Fmt::accumulate(p, b, to);
}

}  // namespace
}  // namespace pellucid
