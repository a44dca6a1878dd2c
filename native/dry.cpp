#include "dry.h"

#include <cmath>

namespace pellucid {

void Dry::edit(float* row, const std::vector<int32_t>& tokens, Scratch& scratch) const {
  const int64_t all = static_cast<int64_t>(tokens.size()), n = window < 0 ? all : std::min(all, window);
  const int64_t limit = std::min(n, unbroken);
  if (limit < allowed) return;
  const int32_t* last = tokens.data() + all - 1;
  auto back = [&](int64_t i) { return last[-i]; };
  auto& agrees = scratch.agrees;
  agrees.assign(static_cast<size_t>(n), 0);
  scratch.longest.clear();
  int64_t left = 0, right = 0;  // back[left, right): the stretch, of those that agree, that reaches furthest
  for (int64_t at = 1; at < n; ++at) {
    int64_t length = at < right ? std::min<int64_t>(right - at, agrees[static_cast<size_t>(at - left)]) : 0;
    while (at + length < n && back(at + length) == back(length)) ++length;
    if (at + length > right) left = at, right = at + length;
    agrees[static_cast<size_t>(at)] = static_cast<int32_t>(length);
    length = std::min(length, limit);
    if (length < allowed) continue;
    int32_t& longest = scratch.longest[back(at - 1)];
    longest = std::max(longest, static_cast<int32_t>(length));
  }
  for (const auto& [token, length] : scratch.longest) {
    const bool lone = std::any_of(breakers.begin(), breakers.end(), [token = token](const Breaker& breaker) {
      return breaker.tail.empty() && breaker.headed(token);
    });
    if (lone) continue;
    const int64_t over = std::min(length - allowed, most);
    row[token] -= static_cast<float>(multiplier * std::pow(base, static_cast<double>(over)));
  }
}

}  // namespace pellucid
