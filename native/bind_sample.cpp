// Binding of the sampler. Law: no arithmetic; check shapes, release the GIL, call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sample.h"

namespace nb = nanobind;

namespace {

template <typename T, int D>
using Array = nb::ndarray<T, nb::ndim<D>, nb::c_contig, nb::device::cpu>;

void check(bool truth, const char* what) {
  if (!truth) throw std::invalid_argument(what);
}

pellucid::SampleState make_state(
    float temperature, int64_t top_k, uint64_t top_p, float min_x, std::vector<int32_t> edits,
    std::vector<int32_t> cuts, bool plain, bool processed, double top_n_sigma, uint64_t typical_p,
    uint64_t xtc_probability, uint64_t xtc_threshold, double dynatemp_low, double dynatemp_high,
    double dynatemp_exponent, float repetition, float presence, float frequency, double dry_multiplier,
    double dry_base, int64_t dry_allowed, int64_t dry_most, int64_t dry_window,
    std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> dry_breakers, uint64_t seed,
    uint32_t choice, int32_t logprobs, int64_t held_until, std::vector<int32_t> held_ids,
    const std::vector<int32_t>& bias_ids, const std::vector<float>& bias_values,
    std::vector<int32_t> only_ids, std::vector<std::vector<int32_t>> bad_ids, bool penalized, int64_t window,
    const std::vector<int32_t>& prompt) {
  check(bias_ids.size() == bias_values.size(), "bias_ids and bias_values differ in length");
  check(only_ids.empty() || (only_ids[0] >= 0 &&
                             std::is_sorted(only_ids.begin(), only_ids.end(), std::less_equal<int32_t>())),
        "only_ids are not ascending, each once");
  check(!processed || (logprobs >= 0 && !plain), "processed logprobs are not asked for");
  check(logprobs <= pellucid::kMaxLogprobs, "more logprobs than kMaxLogprobs");
  for (const int32_t cut : cuts) check(cut >= 0 && cut < pellucid::kStages, "a stage has no such number");
  for (const int32_t edit : edits)
    check(edit == pellucid::kPenalties || edit == pellucid::kDry, "an edit has no such number");
  pellucid::SampleState s;
  s.temperature = temperature;
  s.top_k = top_k;
  s.top_p = top_p;
  s.min_x = min_x;
  s.edits = std::move(edits);
  s.cuts = std::move(cuts);
  s.plain = plain;
  s.processed = processed;
  s.top_n_sigma = top_n_sigma;
  s.typical_p = typical_p;
  s.xtc_probability = xtc_probability;
  s.xtc_threshold = xtc_threshold;
  s.dynatemp_low = dynatemp_low;
  s.dynatemp_high = dynatemp_high;
  s.dynatemp_exponent = dynatemp_exponent;
  s.repetition = repetition;
  s.presence = presence;
  s.frequency = frequency;
  s.dry = {dry_multiplier, dry_base, dry_allowed, dry_most, dry_window, {}, 0};
  for (auto& [heads, tail] : dry_breakers) {
    check(std::is_sorted(heads.begin(), heads.end()), "the heads of a breaker are not ascending");
    s.dry.breakers.push_back({std::move(heads), std::move(tail)});
  }
  s.seed = seed;
  s.choice = choice;
  s.logprobs = logprobs;
  s.held_until = held_until;
  s.held_ids = std::move(held_ids);
  s.only = std::move(only_ids);
  for (const auto& ids : bad_ids) check(!ids.empty(), "a bad word has no tokens");
  s.bad = std::move(bad_ids);
  s.penalized = penalized;
  s.window = window;
  for (size_t i = 0; i < bias_ids.size(); ++i) s.bias.emplace_back(bias_ids[i], bias_values[i]);
  for (const int32_t id : prompt) s.push(id, false);
  return s;
}

void allow(pellucid::SampleState& state, Array<const uint32_t, 1> bits) {
  state.allowed.assign(bits.data(), bits.data() + bits.shape(0));
}

void sample_rows(const std::vector<const pellucid::SampleState*>& states, Array<const float, 2> logits,
                 Array<const int32_t, 1> rows, Array<const int64_t, 1> positions, Array<int32_t, 1> tokens,
                 Array<int32_t, 1> status, Array<float, 1> logprobs, std::optional<Array<int32_t, 2>> top_ids,
                 std::optional<Array<float, 2>> top_logprobs, pellucid::Pool* pool) {
  const size_t n = states.size();
  check(rows.shape(0) == n && positions.shape(0) == n && tokens.shape(0) == n && status.shape(0) == n &&
            logprobs.shape(0) == n,
        "the arrays of sample_rows differ in length");
  const bool tops = top_ids && top_logprobs && top_ids->shape(0) == n && top_logprobs->shape(0) == n &&
                    top_ids->shape(1) == pellucid::kMaxLogprobs &&
                    top_logprobs->shape(1) == pellucid::kMaxLogprobs;
  for (size_t i = 0; i < n; ++i) {
    check(states[i] && rows.data()[i] >= 0 && static_cast<size_t>(rows.data()[i]) < logits.shape(0),
          "a row is not in the logits");
    check(tops || states[i]->logprobs < 0, "logprobs are asked for and have no place");
    check(states[i]->allowed.empty() || states[i]->allowed.size() * 32 >= logits.shape(1),
          "the mask of a row is too short");
    for (const auto& ids : states[i]->bad)
      check(static_cast<size_t>(ids.back()) < logits.shape(1), "a bad word's token is not in the vocabulary");
    check(states[i]->only.empty() || static_cast<size_t>(states[i]->only.back()) < logits.shape(1),
          "an allowed token is not in the vocabulary");
  }
  const pellucid::SampleOut out{tokens.data(), status.data(), logprobs.data(),
                                tops ? top_ids->data() : nullptr, tops ? top_logprobs->data() : nullptr};
  nb::gil_scoped_release release;
  pellucid::sample_rows(logits.data(), static_cast<int64_t>(logits.shape(1)), states.data(), rows.data(),
                        positions.data(), static_cast<int64_t>(n), out, pool);
}

void score_rows(Array<const float, 2> logits, Array<const int32_t, 1> tokens, int32_t wanted,
                Array<int32_t, 1> status, Array<float, 1> logprobs, Array<int32_t, 2> top_ids,
                Array<float, 2> top_logprobs) {
  const size_t n = tokens.shape(0);
  check(logits.shape(0) == n && status.shape(0) == n && logprobs.shape(0) == n && top_ids.shape(0) == n &&
            top_logprobs.shape(0) == n && top_ids.shape(1) == pellucid::kMaxLogprobs &&
            top_logprobs.shape(1) == pellucid::kMaxLogprobs && wanted >= 0 &&
            wanted <= pellucid::kMaxLogprobs,
        "the arrays of score_rows do not fit together");
  for (size_t i = 0; i < n; ++i)
    check(tokens.data()[i] >= 0 && static_cast<size_t>(tokens.data()[i]) < logits.shape(1),
          "a token is not in the vocabulary");
  const pellucid::SampleOut out{nullptr, status.data(), logprobs.data(), top_ids.data(), top_logprobs.data()};
  nb::gil_scoped_release release;
  pellucid::score_rows(logits.data(), static_cast<int64_t>(logits.shape(1)), tokens.data(),
                       static_cast<int64_t>(n), wanted, out);
}

}  // namespace

void bind_sample(nb::module_& m);

void bind_sample(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<pellucid::SampleState>(m, "SampleState")
      .def_static("make", &make_state, nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_x"_a,
                  "edits"_a, "cuts"_a, "plain"_a, "processed"_a, "top_n_sigma"_a, "typical_p"_a,
                  "xtc_probability"_a, "xtc_threshold"_a, "dynatemp_low"_a, "dynatemp_high"_a,
                  "dynatemp_exponent"_a, "repetition"_a, "presence"_a, "frequency"_a, "dry_multiplier"_a,
                  "dry_base"_a, "dry_allowed"_a, "dry_most"_a, "dry_window"_a, "dry_breakers"_a, "seed"_a,
                  "choice"_a, "logprobs"_a, "held_until"_a, "held_ids"_a, "bias_ids"_a, "bias_values"_a,
                  "only_ids"_a, "bad_ids"_a, "penalized"_a, "window"_a, "prompt"_a)
      .def(
          "push", [](pellucid::SampleState& state, int32_t token) { state.push(token, true); }, "token"_a)
      .def("allow", &allow, "bits"_a)
      .def_ro("logprobs", &pellucid::SampleState::logprobs);
  m.def("sample_rows", &sample_rows, "states"_a, "logits"_a, "rows"_a, "positions"_a, "tokens"_a, "status"_a,
        "logprobs"_a, "top_ids"_a.none(), "top_logprobs"_a.none(), "pool"_a.none());
  m.def("score_rows", &score_rows, "logits"_a, "tokens"_a, "wanted"_a, "status"_a, "logprobs"_a, "top_ids"_a,
        "top_logprobs"_a);
  m.def("philox_bits53", &pellucid::philox_bits53, "seed"_a, "choice"_a, "position"_a, "stage"_a);
}
