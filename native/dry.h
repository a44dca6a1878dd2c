// The stage dry: sampling/dry.py, natively. That file is the definition; this one equals it, bit for bit.
//
// Law: what it takes from a token depends on the tokens so far only; the time is linear in the window.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace pellucid {

struct Dry {
  // Tokens at whose end a sequence breaker stands: one of `heads` (ascending), and then `tail`.
  struct Breaker {
    std::vector<int32_t> heads, tail;

    bool headed(int32_t token) const { return std::binary_search(heads.begin(), heads.end(), token); }
    bool ends(const std::vector<int32_t>& tokens) const {
      return tokens.size() > tail.size() && std::equal(tail.rbegin(), tail.rend(), tokens.rbegin()) &&
             headed(tokens[tokens.size() - tail.size() - 1]);
    }
  };
  // Between calls, of the thread that calls.
  struct Scratch {
    std::vector<int32_t> agrees;
    std::unordered_map<int32_t, int32_t> longest;
  };

  double multiplier = 0.0;  // 0: off
  double base = 1.0;
  int64_t allowed = 0, most = 0;  // the length that costs nothing more, and the largest exponent
  int64_t window = -1;            // the last tokens that are searched; -1: all
  std::vector<Breaker> breakers;
  int64_t unbroken = 0;  // tokens behind the last breaker

  // The last of `tokens` is new.
  void push(const std::vector<int32_t>& tokens) {
    ++unbroken;
    for (const Breaker& breaker : breakers)
      if (breaker.ends(tokens)) unbroken = 0;
  }
  // Edits a row of logits.
  void edit(float* row, const std::vector<int32_t>& tokens, Scratch& scratch) const;
};

}  // namespace pellucid
