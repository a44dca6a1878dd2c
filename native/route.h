// Kernels of a mixture of experts that work on one row: the choice of experts and the sum of what they make.
// Law: as in ops.h, of which they use the exponential; sums over experts run in the order of their numbers,
// or over 16 lanes and the fixed tree. Included only by isa_*.cpp.
#pragma once

#include "kernels.h"
#include "ops.h"

namespace pellucid {
namespace {

// Whether an expert of logit a goes before one of a lower number and logit b.
inline bool beats(float a, float b) { return a > b || (b != b && a == a); }

// 1 / (1 + e^-x).
template <class S>
float sigmoid(float x) {
  return 1.0f / (1.0f + exp1<S>(-x));
}

// The numbers, ascending, of the `top` experts of the greatest logits, as floats, and their weights: the
// softmax of their own logits where `normalized`, else their shares of the softmax over all.
template <class S>
void route(const float* logits, int experts, int top, bool normalized, float* chosen, float* weights) {
  using F = typename S::F;
  // The best so far, best first, as numbers in `chosen`, with their logits in `weights`.
  int n = 0;
  for (int e = 0; e < experts; ++e) {
    if (n == top && !beats(logits[e], weights[n - 1])) continue;
    int at = n < top ? n++ : n - 1;
    for (; at > 0 && beats(logits[e], weights[at - 1]); --at) {
      chosen[at] = chosen[at - 1];
      weights[at] = weights[at - 1];
    }
    chosen[at] = static_cast<float>(e);
    weights[at] = logits[e];
  }
  const float most = weights[0];
  for (int i = 1; i < top; ++i) {
    const float e = chosen[i];
    int at = i;
    for (; at > 0 && chosen[at - 1] > e; --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
  for (int i = 0; i < top; ++i) weights[i] = logits[static_cast<int>(chosen[i])];
  const auto power = [&](F x) { return exp<S>(S::sub(x, S::set1(most))); };
  float total = 0.0f;
  if (!normalized) {
    F sum = S::zero();
    by_16(experts, [&](int i, int count) {
      alignas(64) float lanes[16] = {};
      store_upto<S>(lanes, power(load_upto<S>(logits + i, count)), count);
      sum = S::add(sum, S::load(lanes));
    });
    total = S::reduce_add(sum);
  }
  by_16(top, [&](int i, int count) {
    store_upto<S>(weights + i, power(load_upto<S>(weights + i, count)), count);
  });
  if (normalized)
    for (int i = 0; i < top; ++i) total += weights[i];
  for (int i = 0; i < top; ++i) weights[i] /= total;
}

// out += x * factor, rounded once.
template <class S>
void add_scaled(const float* x, float factor, int n, float* out) {
  by_16(n, [&](int i, int count) {
    store_upto<S>(out + i, S::fma(load_upto<S>(x + i, count), S::set1(factor), load_upto<S>(out + i, count)),
                  count);
  });
}

template <class S>
constexpr ExpertKernels expert_kernels() {
  return {&sigmoid<S>, &route<S>, &add_scaled<S>};
}

}  // namespace
}  // namespace pellucid
