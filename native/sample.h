// Sampling of all rows of a step: sampling/chain.py, fused. That file is the definition; this one equals it,
// token for token.
//
// Law: a row's token depends on its logits and its state only. Masses are integers (floor(exp(x) * 2^44)), so
// their sums are exact in any order and only what decides is sorted. A row is one thread's; the caller has
// let go of the GIL.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dry.h"
#include "pool.h"

namespace pellucid {

constexpr int kMaxLogprobs = 20;
enum SampleStatus : int32_t { kSampleOk = 0, kNotFinite = 1, kAllBanned = 2 };

// The stages whose order can be set, as numbers: those that weigh and cut candidates, in the order of
// sampling/cuts.py's CUTS, and then those that edit logits.
enum Stage : int32_t {
  kTemperature,
  kTopNSigma,
  kTopK,
  kTypicalP,
  kTopP,
  kMinP,
  kXtc,
  kPenalties,
  kDry,
  kStages
};

// What one sequence asks of sampling, and its tokens so far if a stage needs to know them.
struct SampleState {
  float temperature = 1.0f;    // 0: greedy
  int64_t top_k = 0;           // 0: all
  uint64_t top_p = 0;          // share in units of 2^-53; 2^53: all
  float min_x = 0.0f;          // log(min_p); -inf: all
  std::vector<int32_t> edits;  // kPenalties and kDry, as far as they come before all else, in order
  std::vector<int32_t> cuts;   // the stages behind these that are on, in order
  // Cuts are some of temperature (not a dynamic one), top_k, top_p, min_p in this order, and nobody asks for
  // what is left.
  bool plain = true;
  bool processed = false;    // logprobs are of what is left to draw from, not of the model
  double top_n_sigma = 0.0;  // 0: off
  uint64_t typical_p = 0;    // share in units of 2^-53
  uint64_t xtc_probability = 0, xtc_threshold = 0;  // the same
  double dynatemp_low = 0.0, dynatemp_high = 0.0;   // equal: the temperature is `temperature`
  double dynatemp_exponent = 1.0;
  float repetition = 1.0f, presence = 0.0f, frequency = 0.0f;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int32_t logprobs = -1;   // most likely tokens to report; -1: not even the token's own
  int64_t held_until = 0;  // position before which held_ids may not be drawn
  std::vector<int32_t> held_ids;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> only;              // ids, ascending, that may be drawn; empty: all
  std::vector<std::vector<int32_t>> bad;  // the last of these may not be drawn behind the others
  std::vector<uint32_t> allowed;          // a bit a token, the lowest first: what may be drawn; empty: all
  bool penalized = false;
  // How often a token came, of those that penalties count, and how often in the answer.
  struct Times {
    int32_t all = 0, answer = 0;
  };
  std::unordered_map<int32_t, Times> seen;
  int64_t window = -1;  // the last tokens that count; -1: all
  Dry dry;
  std::vector<int32_t> tokens;  // prompt and answer so far
  size_t prompt = 0;            // tokens of the prompt

  // Whether the answer ends in all but the last token of a sequence.
  bool completes(const std::vector<int32_t>& sequence) const {
    const size_t length = sequence.size() - 1;
    return tokens.size() - prompt >= length &&
           std::equal(sequence.begin(), sequence.end() - 1, tokens.end() - static_cast<int64_t>(length));
  }

  // Takes in one more token of the prompt or the answer.
  void push(int32_t token, bool answer) {
    tokens.push_back(token);
    prompt += !answer;
    dry.push(tokens);
    if (!penalized) return;
    Times& times = seen[token];
    ++times.all;
    times.answer += answer;
    if (window < 0 || tokens.size() <= static_cast<size_t>(window)) return;
    const size_t first = tokens.size() - 1 - static_cast<size_t>(window);  // leaves the window
    Times& left = seen[tokens[first]];
    left.answer -= first >= prompt;
    if (--left.all == 0) seen.erase(tokens[first]);
  }
};

// Where the results of n rows go. top_* are (n, kMaxLogprobs), or null if no state has logprobs >= 0; unused
// places hold -1.
struct SampleOut {
  int32_t* tokens;
  int32_t* status;
  float* logprobs;
  int32_t* top_ids;
  float* top_logprobs;
};

// Draws a token for each of n states: states[i] from row rows[i] of logits (·, vocab), at position
// positions[i]. The threads of `pool` share the rows, if there is one.
void sample_rows(const float* logits, int64_t vocab, const SampleState* const* states, const int32_t* rows,
                 const int64_t* positions, int64_t n, const SampleOut& out, Pool* pool);

// For each of n rows: the logprob of tokens[i] and of the `wanted` most likely tokens. out.tokens is not
// used.
void score_rows(const float* logits, int64_t vocab, const int32_t* tokens, int64_t n, int32_t wanted,
                const SampleOut& out);

// The 53 random bits of (seed, choice, position, stage): Philox4x32-10.
uint64_t philox_bits53(uint64_t seed, uint32_t choice, uint64_t position, uint32_t stage);

}  // namespace pellucid
