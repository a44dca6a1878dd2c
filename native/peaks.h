// What this core can do at most, to hold the kernels against: int8 multiply-adds, and bytes read.
#pragma once
#include "kernels.h"
#include "simd/base.h"

namespace pellucid {
namespace {

// `rounds` of a product of 16 weight rows with a tile of activations, all in L1; returns the multiply-adds
// done.
template <class S>
int64_t spin(int64_t rounds) {
  constexpr int kTile = S::kRowTile >= 8 ? 12 : S::kRowTile;
  alignas(64) uint8_t weights[8 * 64] = {};
  alignas(64) int8_t codes[kTile * 32] = {};
  typename S::I acc[kTile];
  PELLUCID_UNROLL
  for (int i = 0; i < kTile; ++i) acc[i] = S::zero_i();
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : : "r"(weights), "r"(codes) : "memory");  // the arrays may have changed
    PELLUCID_UNROLL
    for (int j = 0; j < 8; ++j) {
      const typename S::B w = S::load_b(weights + 64 * j);
      PELLUCID_UNROLL
      for (int i = 0; i < kTile; ++i) acc[i] = S::dot(acc[i], w, load_word(codes + 32 * i + 4 * j));
    }
  }
  // Unrolled, or the sums of the loop above would live in memory.
  PELLUCID_UNROLL
  for (int i = 1; i < kTile; ++i) acc[0] = S::add_i(acc[0], acc[i]);
  const int32_t sum = S::reduce_add_i(acc[0]);
  asm volatile("" : : "r"(sum));
  return rounds * kTile * 8 * 64;
}

// Reads n bytes, a multiple of 256, in order.
template <class S>
void read(const uint8_t* p, int64_t n) {
  typename S::B acc[4];
  for (int i = 0; i < 4; ++i) acc[i] = S::load_b(p + 64 * i);
  for (int64_t at = 0; at < n; at += 256) {
    PELLUCID_UNROLL
    for (int i = 0; i < 4; ++i) {
      prefetch(p + at + 4096 + 64 * i);
      acc[i] = S::or_b(acc[i], S::load_b(p + at + 64 * i));
    }
  }
  const typename S::B all = S::or_b(S::or_b(acc[0], acc[1]), S::or_b(acc[2], acc[3]));
  const int32_t sum = S::reduce_add_i(S::dot(S::zero_i(), S::low4(all), 0x01010101));
  asm volatile("" : : "r"(sum));
}

}  // namespace
}  // namespace pellucid
