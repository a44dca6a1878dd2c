// What the quantised formats share: sums of a tile of NR quantised rows with 16 weight rows. A format says in
// `accumulate` what a packed block holds, to RowSums, which multiplies, or to an Expander, which writes it
// down. Law: the dots of a block are exact integers; what follows them is the stated float arithmetic of the
// format, one chain an output, the blocks in ascending order.
#pragma once
#include "formats/bytes.h"
#include "formats/expand.h"

namespace pellucid {
namespace {

// Rows of quantised activations.
struct Activations {
  const uint8_t* rows;
  int64_t stride;

  PELLUCID_INLINE const QuantBlock& at(int i, int64_t block) const {
    return static_cast<const QuantBlock*>(static_cast<const void*>(rows + i * stride))[block];
  }
};

// Up to so many rows, sums are multiplied by a scale; above, the codes are, once for all rows. Both are
// exact.
constexpr int kFewRows = 4;

template <class S, int NR>
struct RowSums {
  using F = typename S::F;
  using I = typename S::I;
  static constexpr bool kProducts = NR > kFewRows;
  Activations a;
  F acc[NR];

  struct Dots {
    I v[NR];
    Activations a;
    int64_t block;

    // Add the products of weights w with the activations of word j: k = 4j..4j+3 of the block.
    PELLUCID_INLINE void add(typename S::B w, int j) {
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) v[i] = S::dot(v[i], w, load_word(a.at(i, block).codes + 4 * j));
    }
    PELLUCID_INLINE void add128(typename S::B w, int j) {
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) v[i] = S::dot128(v[i], w, load_word(a.at(i, block).codes + 4 * j));
    }
    // Both sums under whole scales, together.
    PELLUCID_INLINE void weigh(I scale, const Dots& other, I other_scale) {
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) v[i] = S::add_i(S::mul_i(v[i], scale), S::mul_i(other.v[i], other_scale));
    }
  };
  struct Half {
    F part[NR];
  };

  PELLUCID_INLINE Dots start(int64_t block) const {
    Dots dots;
    dots.a = a;
    dots.block = block;
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) dots.v[i] = S::zero_i();
    return dots;
  }
  // Start from what takes the weights' offset of 2^shift out again: of a block, or of one half of it.
  template <int shift>
  PELLUCID_INLINE Dots start(int64_t block) const {
    Dots dots;
    dots.a = a;
    dots.block = block;
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) dots.v[i] = S::template shl_i<shift>(S::set1_i(a.at(i, block).minus_sum));
    return dots;
  }
  template <int shift, int half>
  PELLUCID_INLINE Dots start_half(int64_t block) const {
    Dots dots;
    dots.a = a;
    dots.block = block;
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) {
      const I second = S::set1_i(a.at(i, block).minus_sum1);
      dots.v[i] = S::template shl_i<shift>(half == 0 ? S::sub_i(S::set1_i(a.at(i, block).minus_sum), second)
                                                     : second);
    }
    return dots;
  }
  // What takes out the offset of weights stored with 128 added, where dot128 leaves it in.
  PELLUCID_INLINE Dots start128(int64_t block) const {
    if constexpr (S::kDot128Offset)
      return start<7>(block);
    else
      return start(block);
  }

  // acc = fma(float(dot), w_scale * a_scale, acc)
  PELLUCID_INLINE void add_scaled(const Dots& dots, F scale, int64_t block) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i)
      acc[i] = S::fma(S::cvt(dots.v[i]), S::mul(scale, S::set1(a.at(i, block).scale)), acc[i]);
  }
  // acc = fma(w_min, a_scale * float(a_sum), acc)
  PELLUCID_INLINE void add_min(F min, int64_t block) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) acc[i] = S::fma(min, S::set1(a.at(i, block).min), acc[i]);
  }
  // Halves of a block under scales of their own:
  // acc = fma(fma(float(dot1), scale1, float(dot0) * scale0), a_scale, acc)
  PELLUCID_INLINE Half half(const Dots& dots, F scale) const {
    Half first;
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) first.part[i] = S::mul(S::cvt(dots.v[i]), scale);
    return first;
  }
  PELLUCID_INLINE void add_halves(const Half& first, const Dots& dots, F scale, int64_t block) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i)
      acc[i] = S::fma(S::fma(S::cvt(dots.v[i]), scale, first.part[i]), S::set1(a.at(i, block).scale), acc[i]);
  }
  // part = float(dot) * d; part = fma(min, -float(sum), part); part = fma(more, -float(sum1), part);
  // acc = fma(part, a_scale, acc)
  PELLUCID_INLINE void add_with_mins(const Dots& dots, F d, F min, F more, int64_t block) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) {
      const QuantBlock& x = a.at(i, block);
      F part = S::mul(S::cvt(dots.v[i]), d);
      part = S::fma(min, S::cvt(S::set1_i(x.minus_sum)), part);
      part = S::fma(more, S::cvt(S::set1_i(x.minus_sum1)), part);
      acc[i] = S::fma(part, S::set1(x.scale), acc[i]);
    }
  }
};

// 16 k in a vector of pairs: the first or the second half of a block.
template <class S, int half, class Dots>
PELLUCID_INLINE void add_pairs(Dots& dots, const uint8_t* p) {
  const typename S::B pairs = S::load_b(p);
  dots.add(S::template bits<0, 2, 0>(pairs), 4 * half);
  dots.add(S::template bits<2, 2, 0>(pairs), 4 * half + 1);
  dots.add(S::template bits<4, 2, 0>(pairs), 4 * half + 2);
  dots.add(S::template bits<6, 2, 0>(pairs), 4 * half + 3);
}

// 32 k in 4 vectors of nibbles.
template <class S, class Dots>
PELLUCID_INLINE void add_nibbles(Dots& dots, const uint8_t* p) {
  PELLUCID_UNROLL
  for (int j = 0; j < 4; ++j) {
    const typename S::B packed = S::load_b(p + 64 * j);
    dots.add(S::low4(packed), j);
    dots.add(S::high4(packed), 4 + j);
  }
}

template <class S, int j, class Dots>
PELLUCID_INLINE void add_fives_of(Dots& dots, const uint8_t* p, typename S::B plane) {
  const typename S::B packed = S::load_b(p + 64 * j);
  dots.add(S::or_b(S::low4(packed), S::template bits<j, 1, 4>(plane)), j);
  dots.add(S::or_b(S::high4(packed), S::template bits<4 + j, 1, 4>(plane)), 4 + j);
}

// 32 k in 4 vectors of nibbles and one of fifth bits.
template <class S, class Dots>
PELLUCID_INLINE void add_fives(Dots& dots, const uint8_t* p, const uint8_t* fifths) {
  const typename S::B plane = S::load_b(fifths);
  add_fives_of<S, 0>(dots, p, plane);
  add_fives_of<S, 1>(dots, p, plane);
  add_fives_of<S, 2>(dots, p, plane);
  add_fives_of<S, 3>(dots, p, plane);
}

}  // namespace
}  // namespace pellucid
