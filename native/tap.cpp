// What is seen of values while they are made, and where a fork may change them.
// Law: a tap only reads, after the op that makes its value has ended on every thread, and only the rows that
// are watched; so it changes no bit of what is computed. A value of selected rows is seen in those of them
// that are watched, and is NaN in the others.
//
//   row     the numbers as they are
//   sample  count of them, evenly spaced, the first among them
//   stats   mean, root mean square, least, greatest, and how many are not finite
//   topk    the count of greatest magnitude, in falling order, the lower place first among equals; then their
//   places

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "plan.h"

namespace pellucid {
namespace {

constexpr int kStats = 5;

void stats_of(const float* x, int n, float* out) {
  double sum = 0, squares = 0;
  float least = std::numeric_limits<float>::infinity(), most = -least;
  int broken = 0;
  for (int i = 0; i < n; ++i) {
    sum += x[i];
    squares += double{x[i]} * x[i];
    least = std::min(least, x[i]);
    most = std::max(most, x[i]);
    broken += !std::isfinite(x[i]);
  }
  out[0] = static_cast<float>(sum / n);
  out[1] = static_cast<float>(std::sqrt(squares / n));
  out[2] = least;
  out[3] = most;
  out[4] = static_cast<float>(broken);
}

void topk_of(const float* x, int n, int count, float* out) {
  std::vector<int> order(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  // A NaN is less than any number, so that the order is one.
  const auto size = [x](int i) { return std::isnan(x[i]) ? -1.0f : std::fabs(x[i]); };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
    const float of_a = size(a), of_b = size(b);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  for (int j = 0; j < count; ++j) {
    out[j] = x[order[static_cast<size_t>(j)]];
    out[count + j] = static_cast<float>(order[static_cast<size_t>(j)]);
  }
}

}  // namespace

int64_t TapOp::width() const {
  switch (kind) {
    case Kind::row:
      return n;
    case Kind::sample:
      return count;
    case Kind::stats:
      return kStats;
    case Kind::topk:
      return int64_t{2} * count;
  }
  return 0;
}

void TapOp::run(const Frame& f, int thread) const {
  const auto [first, end] = share(f.step.watched, thread, f.pool.threads());
  for (int i = first; i < end; ++i) {
    int row = f.step.watched_rows[i];
    float* out = f.step.tapped + i * f.tap_width + at;
    if (selected) {
      const int32_t* begin = f.step.logit_rows;
      const int32_t* found = std::find(begin, begin + f.step.wanted, row);
      if (found == begin + f.step.wanted) {
        std::fill(out, out + width(), std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      row = static_cast<int>(found - begin);
    }
    const float* values = f.floats(x, row);
    switch (kind) {
      case Kind::row:
        std::copy(values, values + n, out);
        break;
      case Kind::sample:
        for (int j = 0; j < count; ++j) out[j] = values[int64_t{j} * n / count];
        break;
      case Kind::stats:
        stats_of(values, n, out);
        break;
      case Kind::topk:
        topk_of(values, n, count, out);
        break;
    }
  }
}

void PatchOp::run(const Frame& f, int thread) const {
  const auto [first, end] = share(f.count(selected), thread, f.pool.threads());
  for (int r = first; r < end; ++r) {
    const float* from = f.floats(x, r);
    std::copy(from, from + n, f.floats(out, r));
  }
}

}  // namespace pellucid
