// What the quantised formats share: a tile of NR quantised rows and its integer dots with 16 weight rows.
// Law: the dots of a block are exact integers; what follows them is the stated float arithmetic of the
// format, one chain an output, the blocks in ascending order.
#pragma once
#include "formats/bytes.h"

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
struct Dots {
  typename S::I v[NR];

  PELLUCID_INLINE void zero() {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::zero_i();
  }
  // Start from what takes the weights' offset of 2^shift out again: of a block, or of one half of it.
  template <int shift>
  PELLUCID_INLINE void start(const Activations& a, int64_t block) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::template shl_i<shift>(S::set1_i(a.at(i, block).minus_sum));
  }
  template <int shift, int half>
  PELLUCID_INLINE void start_half(const Activations& a, int64_t block) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) {
      const typename S::I second = S::set1_i(a.at(i, block).minus_sum1);
      v[i] = S::template shl_i<shift>(half == 0 ? S::sub_i(S::set1_i(a.at(i, block).minus_sum), second)
                                                : second);
    }
  }
  // Add the products of weights w with the activations of word j: k = 4j..4j+3 of the block.
  PELLUCID_INLINE void add(typename S::B w, const Activations& a, int64_t block, int j) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::dot(v[i], w, load_word(a.at(i, block).codes + 4 * j));
  }
  PELLUCID_INLINE void add128(typename S::B w, const Activations& a, int64_t block, int j) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::dot128(v[i], w, load_word(a.at(i, block).codes + 4 * j));
  }
  // What takes out the offset of weights stored with 128 added, where dot128 leaves it in.
  PELLUCID_INLINE void start128(const Activations& a, int64_t block) {
    if constexpr (S::kDot128Offset)
      start<7>(a, block);
    else
      zero();
  }
  // 16 k in a vector of pairs: the first or the second half of a block.
  template <int half>
  PELLUCID_INLINE void add_pairs(const uint8_t* p, const Activations& a, int64_t block) {
    const typename S::B pairs = S::load_b(p);
    add(S::template bits<0, 2, 0>(pairs), a, block, 4 * half);
    add(S::template bits<2, 2, 0>(pairs), a, block, 4 * half + 1);
    add(S::template bits<4, 2, 0>(pairs), a, block, 4 * half + 2);
    add(S::template bits<6, 2, 0>(pairs), a, block, 4 * half + 3);
  }
  // 32 k in 4 vectors of nibbles and one of fifth bits.
  PELLUCID_INLINE void add_fives(const uint8_t* p, const uint8_t* fifths, const Activations& a,
                                 int64_t block) {
    const typename S::B plane = S::load_b(fifths);
    add_fives_of<0>(p, plane, a, block);
    add_fives_of<1>(p, plane, a, block);
    add_fives_of<2>(p, plane, a, block);
    add_fives_of<3>(p, plane, a, block);
  }
  // 32 k in 4 vectors of nibbles.
  PELLUCID_INLINE void add_nibbles(const uint8_t* p, const Activations& a, int64_t block) {
    PELLUCID_UNROLL
    for (int j = 0; j < 4; ++j) {
      const typename S::B packed = S::load_b(p + 64 * j);
      add(S::low4(packed), a, block, j);
      add(S::high4(packed), a, block, 4 + j);
    }
  }

 private:
  template <int j>
  PELLUCID_INLINE void add_fives_of(const uint8_t* p, typename S::B plane, const Activations& a,
                                    int64_t block) {
    const typename S::B packed = S::load_b(p + 64 * j);
    add(S::or_b(S::low4(packed), S::template bits<j, 1, 4>(plane)), a, block, j);
    add(S::or_b(S::high4(packed), S::template bits<4 + j, 1, 4>(plane)), a, block, 4 + j);
  }
};

// acc = fma(float(dot), w_scale * a_scale, acc)
template <class S, int NR>
PELLUCID_INLINE void add_scaled(const Dots<S, NR>& dots, typename S::F scale, const Activations& a,
                                int64_t block, typename S::F (&acc)[NR]) {
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i)
    acc[i] = S::fma(S::cvt(dots.v[i]), S::mul(scale, S::set1(a.at(i, block).scale)), acc[i]);
}

// acc = fma(w_min, a_scale * float(a_sum), acc)
template <class S, int NR>
PELLUCID_INLINE void add_min(typename S::F min, const Activations& a, int64_t block,
                             typename S::F (&acc)[NR]) {
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) acc[i] = S::fma(min, S::set1(a.at(i, block).min), acc[i]);
}

}  // namespace
}  // namespace pellucid
