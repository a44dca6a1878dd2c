// What a head of attention looks at, beside the kernel that serves: the weights of chosen rows, and the sums
// that its metrics are made of. Law: a row's numbers depend on its query and its keys alone. Included only by
// isa_*.cpp.
#pragma once

#include "kernels.h"
#include "ops.h"

namespace pellucid {
namespace {

// Scores of up to kLookRows queries with the keys of the groups [group0, group1), to rows of `stride` floats.
template <class S, int kRows>
void look_scores(const float* const* q, const float* keys, int d, int group0, int group1, float* out,
                 int64_t stride) {
  using F = typename S::F;
  for (int g = group0; g < group1; ++g) {
    F sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = S::zero();
    const float* key = keys + int64_t{g} * d * 16;
    for (int i = 0; i < d; ++i) {
      const F k = S::load(key + int64_t{i} * 16);
      for (int r = 0; r < kRows; ++r) sums[r] = S::fma(S::set1(q[r][i]), k, sums[r]);
    }
    for (int r = 0; r < kRows; ++r) S::store(out + r * stride + int64_t{g} * 16, sums[r]);
  }
}

// One row: its scores become weights times their sum, and its sums join the others'.
template <class S>
void look_row(const LookArgs& a, int row, float* e) {
  using F = typename S::F;
  const int p = a.positions[row], first = a.window && p >= a.window ? p - a.window + 1 : 0;
  const int begin = first / 16 * 16, end = (p / 16 + 1) * 16;
  constexpr float kUnseen = -__builtin_inff();
  for (int j = begin; j < first; ++j) e[j] = kUnseen;
  for (int j = p + 1; j < end; ++j) e[j] = kUnseen;
  F greatest = S::set1(kUnseen);
  for (int j = begin; j < end; j += 16) {
    F s = S::mul(S::load(e + j), S::set1(a.scale));
    if (a.cap != 0.0f) {
      // cap · tanh(s / cap), tanh(x) = 1 - 2 / (e^2x + 1); what is not seen stays so.
      const F power = exp<S>(S::mul(s, S::set1(2.0f / a.cap)));
      const F bounded = S::sub(S::set1(1.0f), S::div(S::set1(2.0f), S::add(power, S::set1(1.0f))));
      S::store(e + j, S::mul(S::set1(a.cap), bounded));
      for (int i = j; i < j + 16; ++i)
        if (i < first || i > p) e[i] = kUnseen;
      s = S::load(e + j);
    }
    S::store(e + j, s);
    greatest = S::max(greatest, s);
  }
  float most = S::reduce_max(greatest);
  if (a.sink && *a.sink > most) most = *a.sink;
  alignas(64) static constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F lanes = S::load(kLanes), at = S::set1(static_cast<float>(p));
  const float token = a.previous[p + 1];
  F total = S::zero(), weighted = S::zero(), distance = S::zero(), square = S::zero(), after = S::zero();
  for (int j = begin; j < end; j += 16) {
    const F s = S::max(S::sub(S::load(e + j), S::set1(most)), S::set1(-88.0f)), x = exp<S>(s);
    S::store(e + j, x);
    total = S::add(total, x);
    weighted = S::fma(x, s, weighted);
    const F back = S::sub(at, S::add(S::set1(static_cast<float>(j)), lanes)), far = S::mul(x, back);
    distance = S::add(distance, far);
    square = S::fma(far, back, square);
    // Where the key's predecessor is the query's token.
    const F other = S::abs(S::sub(S::load(a.previous + j), S::set1(token)));
    after = S::add(after, S::zero_where_less(x, S::sub(S::zero(), other), S::set1(-0.5f)));
  }
  const double seen = S::reduce_add(total), sunk = a.sink ? exp1<S>(*a.sink - most) : 0.0f,
               share = 1.0 / (seen + sunk);
  if (a.sums) {
    double near = 0.0;
    for (int j = p - 15 > first ? p - 15 : first; j <= p; ++j) near += e[j];
    const double mean = S::reduce_add(distance) * share;
    double entropy = __builtin_log(seen + sunk) - S::reduce_add(weighted) * share;
    if (a.sink) entropy -= sunk * share * (double{*a.sink} - most);
    const double numbers[kLookSums] = {e[p] * share,
                                       p > first ? e[p - 1] * share : 0.0,
                                       first == 0 ? e[0] * share : 0.0,
                                       near * share,
                                       entropy,
                                       mean,
                                       S::reduce_add(square) * share - mean * mean,
                                       S::reduce_add(after) * share,
                                       sunk * share};
    for (int i = 0; i < kLookSums; ++i) a.sums[i] += numbers[i];
    for (int i = 0; i < a.spans; ++i) {
      const int from = a.span[2 * i] > first ? a.span[2 * i] : first,
                to = a.span[2 * i + 1] < p + 1 ? a.span[2 * i + 1] : p + 1;
      double sum = 0.0;
      for (int j = from; j < to; ++j) sum += e[j];
      a.sums[kLookSums + i] += sum * share;
    }
  }
  if (a.weights) {
    float* out = a.weights + row * a.weights_stride;
    for (int j = first; j <= p; ++j) out[j] = static_cast<float>(e[j] * share);
  }
}

template <class S>
void look(const LookArgs& a) {
  for (int row = 0; row < a.rows; row += kLookRows) {
    const int count = a.rows - row < kLookRows ? a.rows - row : kLookRows;
    const float* q[kLookRows];
    for (int r = 0; r < count; ++r) q[r] = a.q + (row + r) * a.q_stride;
    const int low = a.positions[row], high = a.positions[row + count - 1];
    const int group0 = a.window && low >= a.window ? (low - a.window + 1) / 16 : 0, group1 = high / 16 + 1;
    if (count == kLookRows) {
      look_scores<S, kLookRows>(q, a.keys, a.d, group0, group1, a.scratch, a.stride);
    } else {
      for (int r = 0; r < count; ++r)
        look_scores<S, 1>(q + r, a.keys, a.d, group0, group1, a.scratch + r * a.stride, a.stride);
    }
    for (int r = 0; r < count; ++r) look_row<S>(a, row + r, a.scratch + r * a.stride);
  }
}

}  // namespace
}  // namespace pellucid
