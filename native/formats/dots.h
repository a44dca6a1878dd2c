// What the quantised formats share: a tile of NR quantised rows and its integer dots with 16 weight rows.
// Law: the dots of a block are exact integers; what follows them is the stated float arithmetic of the
// format, one chain an output, the blocks in ascending order.
#pragma once
#include "formats/bytes.h"

namespace pellucid {
namespace {

// Rows of quantised activations (quant_row_bytes in kernels.h tells their layout).
struct Activations {
  const uint8_t* rows;
  int64_t stride;
  int64_t cols;

  PELLUCID_INLINE const uint8_t* codes(int i, int64_t block) const { return rows + i * stride + 32 * block; }
  PELLUCID_INLINE float scale(int i, int64_t block) const {
    return real(rows + i * stride + cols + 4 * block);
  }
  PELLUCID_INLINE float min(int i, int64_t block) const {
    return real(rows + i * stride + cols + cols / 8 + 4 * block);
  }
  // Sum of the codes of half 0 or 1 of the block.
  PELLUCID_INLINE int32_t sum(int i, int64_t block, int half) const {
    return load_word(rows + i * stride + cols + cols / 4 + 8 * block + 4 * half);
  }
  PELLUCID_INLINE int32_t sum(int i, int64_t block) const { return sum(i, block, 0) + sum(i, block, 1); }

 private:
  static PELLUCID_INLINE float real(const uint8_t* p) {
    float f;
    __builtin_memcpy(&f, p, 4);
    return f;
  }
};

template <class S, int NR>
struct Dots {
  typename S::I v[NR];

  PELLUCID_INLINE void zero() {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::zero_i();
  }
  // Start from what takes the weights' offset out again.
  PELLUCID_INLINE void start(const Activations& a, int64_t block, int offset) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::set1_i(-offset * a.sum(i, block));
  }
  PELLUCID_INLINE void start_half(const Activations& a, int64_t block, int half, int offset) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::set1_i(-offset * a.sum(i, block, half));
  }
  // Add the products of weights w with the activations of word j: k = 4j..4j+3 of the block.
  PELLUCID_INLINE void add(typename S::B w, const Activations& a, int64_t block, int j) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::dot(v[i], w, load_word(a.codes(i, block) + 4 * j));
  }
  PELLUCID_INLINE void add128(typename S::B w, const Activations& a, int64_t block, int j) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) v[i] = S::dot128(v[i], w, load_word(a.codes(i, block) + 4 * j));
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
};

// acc = fma(float(dot), w_scale * a_scale, acc)
template <class S, int NR>
PELLUCID_INLINE void add_scaled(const Dots<S, NR>& dots, typename S::F scale, const Activations& a,
                                int64_t block, typename S::F (&acc)[NR]) {
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i)
    acc[i] = S::fma(S::cvt(dots.v[i]), S::mul(scale, S::set1(a.scale(i, block))), acc[i]);
}

// acc = fma(w_min, a_scale * float(a_sum), acc)
template <class S, int NR>
PELLUCID_INLINE void add_min(typename S::F min, const Activations& a, int64_t block,
                             typename S::F (&acc)[NR]) {
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) acc[i] = S::fma(min, S::set1(a.min(i, block)), acc[i]);
}

}  // namespace
}  // namespace pellucid
