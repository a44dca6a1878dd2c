#include "sample.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

// Clones for wider registers give the same bits: no fma, no reordering, only more lanes.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

namespace pellucid {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kWeightFrom = -32.0f;            // below, a weight is 0
constexpr float kWeightOne = 17592186044416.0f;  // 2^44
constexpr double kLogWeightOne = 44 * 0.693147180559945309417232121458;
constexpr int kBins = 64 * 32 + 1;  // bin b holds x in (-(b+1)/64, -b/64]: narrow, so that few are sorted
constexpr int kBlock = 256;
constexpr int kNearBlock = 64;
// Where candidates are looked for first: nearly always all that decides lies there, in few of them.
constexpr float kNear = -10.0f;

// Scratch of one thread, kept between calls.
struct Scratch {
  std::vector<float> row, x;
  std::vector<int32_t> near;
  std::vector<uint64_t> keys, more, sorting, weights;
  Dry::Scratch dry;
};

inline float exp32(float x) {
  constexpr float magic = 12582912.0f;
  const float n = (x * 1.44269504088896341f + magic) - magic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = (p * (r * r) + r) + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  return y * std::bit_cast<float>(bits);
}

// exp(x) * 2^44 before it is cut to a whole number.
inline float weight32(float x) {
  const float w = exp32(x < kWeightFrom ? kWeightFrom : x) * kWeightOne;
  return x < kWeightFrom ? 0.0f : w;
}

inline uint64_t weight(float x) { return static_cast<uint64_t>(static_cast<int64_t>(weight32(x))); }

inline int bin_of(float x) { return static_cast<int>(x * -64.0f); }  // for x in [-32, 0]

// Floats in the order of their values as integers; a NaN is above +inf or below -inf.
inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

// The largest of v[0..n), or NaN if there is one. Integer maxima are free to be taken in any order, on any
// lanes.
WIDE float largest(const float* v, int64_t n) {
  int32_t high = INT32_MIN, low = INT32_MAX;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t key = ordered(std::bit_cast<int32_t>(v[i]));
    high = key > high ? key : high;
    low = key < low ? key : low;
  }
  if (low < ordered(std::bit_cast<int32_t>(-kInf))) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(ordered(high));
}

WIDE int64_t first_equal(const float* v, int64_t n, float value) {
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    int32_t found = 0;
    for (int j = 0; j < kBlock; ++j) found += v[i + j] == value;
    if (found) break;
  }
  while (i < n && v[i] != value) ++i;
  return i;
}

WIDE void scale_row(const float* v, int64_t n, float best, float temperature, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = (v[i] - best) / temperature;
}

WIDE uint64_t total_weight(const float* v, int64_t n, float best) {
  float w[kBlock];
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, n - i));
    for (int j = 0; j < count; ++j) w[j] = weight32(v[i + j] - best);
    for (int j = 0; j < count; ++j) sum += static_cast<uint64_t>(static_cast<int64_t>(w[j]));
  }
  return sum;
}

// How many of v weigh something.
WIDE int64_t weighty(const float* v, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += weight32(v[i]) >= 1.0f;
  return count;
}

// a * b >> 53, without losing a bit.
inline uint64_t share53(uint64_t a, uint64_t b) {
  const uint64_t al = a & 0xFFFFFFFFu, ah = a >> 32, bl = b & 0xFFFFFFFFu, bh = b >> 32;
  const uint64_t low = al * bl, m1 = ah * bl, m2 = al * bh;
  const uint64_t mid = (low >> 32) + (m1 & 0xFFFFFFFFu) + (m2 & 0xFFFFFFFFu);
  const uint64_t hi = ah * bh + (m1 >> 32) + (m2 >> 32) + (mid >> 32);
  const uint64_t lo = (mid << 32) | (low & 0xFFFFFFFFu);
  return (hi << 11) | (lo >> 53);
}

// Sorts ascending as (x descending, id ascending); x <= 0 and never NaN. -0 and +0 are one value.
inline uint64_t key_of(float x, int64_t id) {
  const float positive = 0.0f - x;  // +0 for both zeros
  return static_cast<uint64_t>(std::bit_cast<uint32_t>(positive)) << 32 | static_cast<uint32_t>(id);
}
inline float x_of(uint64_t key) { return -std::bit_cast<float>(static_cast<uint32_t>(key >> 32)); }
inline int32_t id_of(uint64_t key) { return static_cast<int32_t>(key & 0xFFFFFFFFu); }

WIDE bool any_from(const float* x, int count, float from) {
  int32_t found = 0;
  for (int i = 0; i < count; ++i) found += x[i] >= from;
  return found > 0;
}

// The ids, ascending, of x >= from.
void ids_from(const float* x, int64_t n, float from, std::vector<int32_t>& ids) {
  ids.clear();
  for (int64_t i = 0; i < n; i += kNearBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kNearBlock, n - i));
    if (!any_from(x + i, count, from)) continue;
    for (int64_t j = i; j < i + count; ++j)
      if (x[j] >= from) ids.push_back(static_cast<int32_t>(j));
  }
}

// Of the ids those whose bin is in [from, to], as sorted keys.
void gather(const float* x, const std::vector<int32_t>& ids, int from, int to, std::vector<uint64_t>& keys) {
  keys.clear();
  const float above = static_cast<float>(to + 1) * -0.015625f, upto = static_cast<float>(from) * -0.015625f;
  for (const int32_t i : ids)
    if (x[i] > above && x[i] <= upto) keys.push_back(key_of(x[i], i));
  std::sort(keys.begin(), keys.end());
}

struct Bins {
  uint32_t count[kBins] = {};
  uint64_t mass[kBins] = {};

  uint64_t add(float x) {
    const uint64_t w = weight(x);
    mass[bin_of(x)] += w;
    return w;
  }
};

// Fewer than k candidates may have a weight: the others weigh nothing, so it does not matter that they are
// not there.
int32_t draw_top_k(const SampleState& s, const float* x, int64_t n, uint64_t bits, Scratch& scratch) {
  auto& near = scratch.near;
  ids_from(x, n, kNear, near);
  if (static_cast<int64_t>(near.size()) < s.top_k) ids_from(x, n, kWeightFrom, near);
  Bins bins;
  for (const int32_t i : near) ++bins.count[bin_of(x[i])];
  int64_t have = 0;
  int last = 0;
  for (; last < kBins - 1; ++last) {
    have += bins.count[last];
    if (have >= s.top_k) break;
  }
  auto& keys = scratch.keys;
  gather(x, near, 0, last, keys);
  int64_t keep = std::min<int64_t>(s.top_k, static_cast<int64_t>(keys.size()));
  uint64_t total = 0;
  for (int64_t i = 0; i < keep; ++i) total += weight(x_of(keys[i]));
  if (s.top_p < 1ull << 53) {
    const uint64_t need = std::max<uint64_t>(1, share53(s.top_p, total));
    uint64_t sum = 0;
    int64_t i = 0;
    while (sum < need) sum += weight(x_of(keys[i++]));
    keep = i;
  }
  while (keep > 1 && x_of(keys[keep - 1]) < s.min_x) --keep;
  total = 0;
  for (int64_t i = 0; i < keep; ++i) total += weight(x_of(keys[i]));
  const uint64_t target = share53(bits, total);
  uint64_t sum = 0;
  for (int64_t i = 0; i < keep; ++i)
    if ((sum += weight(x_of(keys[i]))) > target) return id_of(keys[i]);
  return id_of(keys[0]);
}

// Without top_k: masses by bins of x; only the bin in which a cut falls and the one in which the draw falls
// are sorted. Bins are made of the near candidates if what decides lies among them, else of all.
int32_t draw_by_mass(const SampleState& s, const float* x, int64_t n, uint64_t bits, Scratch& scratch) {
  uint64_t total = total_weight(x, n, 0.0f);
  const bool cut_by_share = s.top_p<1ull << 53, cut_by_x = s.min_x> kWeightFrom;
  // The mass that is kept unless min_x ends it earlier, and the mass that must be seen to decide.
  const uint64_t need = cut_by_share ? std::max<uint64_t>(1, share53(s.top_p, total)) : total;
  const uint64_t seen = cut_by_share || cut_by_x ? need : share53(bits, total) + 1;
  Bins bins;
  auto& near = scratch.near;
  ids_from(x, n, kNear, near);
  uint64_t mass = 0;
  for (const int32_t i : near) mass += bins.add(x[i]);
  if (mass < seen && !(cut_by_x && s.min_x >= kNear)) {
    bins = Bins();
    ids_from(x, n, kWeightFrom, near);
    for (const int32_t i : near) bins.add(x[i]);
  }

  // All of the bins before `edge` are kept, and of that bin what the cuts leave.
  auto& keys = scratch.keys;
  if (cut_by_share || cut_by_x) {
    const int bound = cut_by_x ? bin_of(s.min_x) : kBins - 1;
    uint64_t before = 0;
    int edge = 0;
    while (edge < bound && before + bins.mass[edge] < need) before += bins.mass[edge++];
    gather(x, near, edge, edge, keys);
    for (const uint64_t key : keys) {
      if (before >= need || x_of(key) < s.min_x) break;
      before += weight(x_of(key));
    }
    total = before;
  }
  const uint64_t target = share53(bits, total);
  uint64_t sum = 0;
  int at = 0;
  while (at < kBins - 1 && sum + bins.mass[at] <= target) sum += bins.mass[at++];
  gather(x, near, at, at, keys);
  for (const uint64_t key : keys)
    if ((sum += weight(x_of(key))) > target) return id_of(key);
  return keys.empty() ? 0 : id_of(keys.back());
}

// Sorts keys whose ids ascend: by their upper halves, 11 bits at a time, which leaves equal ones in place.
void sort_keys(std::vector<uint64_t>& keys, std::vector<uint64_t>& other) {
  constexpr size_t kFew = 2048;
  if (keys.size() <= kFew) {
    std::sort(keys.begin(), keys.end());
    return;
  }
  other.resize(keys.size());
  for (int shift = 32; shift < 64; shift += 11) {
    uint32_t starts[2048] = {};
    for (const uint64_t key : keys) ++starts[key >> shift & 2047];
    uint32_t sum = 0;
    for (uint32_t& start : starts) sum += std::exchange(start, sum);
    for (const uint64_t key : keys) other[starts[key >> shift & 2047]++] = key;
    keys.swap(other);
  }
}

// Standard deviation of v - best over what is above -inf, as sampling/mass.py sums it.
WIDE double deviation(const float* v, int64_t n, float best) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {}, count[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes)
    for (int j = 0; j < std::min<int64_t>(kLanes, n - i); ++j) {
      const float x = v[i + j] - best;
      lanes[j] += x > -kInf ? static_cast<double>(x) : 0.0;
      count[j] += x > -kInf ? 1.0 : 0.0;
    }
  double sum = 0.0, finite = 0.0;
  for (const double lane : lanes) sum += lane;
  for (const double lane : count) finite += lane;
  const double mean = sum / finite;
  std::fill(lanes, lanes + kLanes, 0.0);
  for (int64_t i = 0; i < n; i += kLanes)
    for (int j = 0; j < std::min<int64_t>(kLanes, n - i); ++j) {
      const float x = v[i + j] - best;
      const double apart = x > -kInf ? static_cast<double>(x) - mean : 0.0;
      lanes[j] += apart * apart;
    }
  sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return std::sqrt(sum / finite);
}

// Runs kPenalties or kDry on a row.
void edit_by(int32_t stage, float* row, const SampleState& s, Scratch& scratch) {
  if (stage == kDry && s.dry.multiplier > 0) s.dry.edit(row, s.tokens, scratch.dry);
  if (stage == kDry || !s.penalized) return;
  for (const auto& [id, times] : s.seen) {
    float value = row[id];
    value = value > 0 ? value / s.repetition : value * s.repetition;
    value = value - s.frequency * static_cast<float>(times.answer);
    row[id] = times.answer > 0 ? value - s.presence : value;
  }
}

// Candidates in order: sampling/cuts.py's Candidates, as the run [first, end) of sorted keys. While it is
// open it goes on beyond the keys, with all that is below `bound` in x: only what a stage looks at is sorted.
struct Run {
  float* x;
  int64_t n;
  Scratch& scratch;
  float floor;  // what is below can never weigh anything; lowered by a stage that may raise it
  std::vector<uint64_t>& keys = scratch.keys;
  std::vector<uint64_t>& w = scratch.weights;
  size_t first = 0, end = 0;
  bool open = true;
  float bound = 1.0f;
  uint64_t whole = 0;  // weight of all x, once it is known

  // Begins anew, with the x that are there.
  void begin() {
    keys.clear();
    w.clear();
    first = end = 0;
    open = true;
    bound = 1.0f;
    whole = 0;
  }
  void extend() {
    constexpr float kLevels[] = {kNear, -16.0f, -22.0f, kWeightFrom};
    float next = floor;
    for (const float level : kLevels)
      if (level < bound && level > floor) {
        next = level;
        break;
      }
    ids_from(x, n, next, scratch.near);
    auto& more = scratch.more;
    more.clear();
    for (const int32_t id : scratch.near)
      if (x[id] < bound) more.push_back(key_of(x[id], id));
    sort_keys(more, scratch.sorting);
    keys.insert(keys.end(), more.begin(), more.end());
    for (const uint64_t key : more) w.push_back(weight(x_of(key)));
    end = keys.size();
    bound = next;
    open = bound > floor;
  }
  // Whether there is a candidate at a place; it is in the keys then.
  bool reach(size_t i) {
    while (open && i >= end) extend();
    return i < end;
  }
  bool weighs(size_t i) { return reach(i) && w[i] > 0; }
  void close(size_t at) {
    end = at;
    open = false;
  }
  uint64_t total() {
    uint64_t sum = 0;
    for (size_t i = open ? 0 : first, to = open ? first : end; i < to; ++i) sum += w[i];
    if (!open) return sum;
    if (!whole) whole = total_weight(x, n, 0.0f);
    return whole - sum;
  }
  float best() {
    reach(first);
    return x_of(keys[first]);
  }
  // Those that weigh something.
  size_t live() {
    if (open) return static_cast<size_t>(weighty(x, n)) - first;
    size_t at = end;
    while (at > first && w[at - 1] == 0) --at;
    return at - first;
  }
  double surprise() {
    uint64_t sum = 0;
    auto term = [](float value) {
      return static_cast<uint64_t>(
          static_cast<int64_t>(static_cast<double>(weight(value)) * -static_cast<double>(value)));
    };
    if (open)
      for (int64_t i = 0; i < n; ++i) sum += x[i] < kWeightFrom ? 0 : term(x[i]);
    for (size_t i = open ? 0 : first, to = open ? first : end; i < to; ++i) {
      const float value = x_of(keys[i]);
      const uint64_t some = value < kWeightFrom ? 0 : term(value);
      sum = open ? sum - some : sum + some;
    }
    return static_cast<double>(sum) / static_cast<double>(total());
  }

  float dynamic(const SampleState& s) {
    const size_t count = live();
    if (count < 2) return static_cast<float>(s.dynatemp_low);
    const double entropy = std::log(static_cast<double>(total())) - kLogWeightOne + surprise();
    const double certain = std::min(1.0, std::max(0.0, entropy / std::log(static_cast<double>(count))));
    return static_cast<float>(s.dynatemp_low +
                              (s.dynatemp_high - s.dynatemp_low) * std::pow(certain, s.dynatemp_exponent));
  }
  float temper(const SampleState& s) {
    const float from = best(), scale = s.dynatemp_low < s.dynatemp_high ? dynamic(s) : s.temperature;
    if (open) {
      forget_first();
      scale_row(x, n, from, scale, x);
      begin();
      return scale;
    }
    for (size_t i = first; i < end; ++i)
      keys[i] = key_of((x_of(keys[i]) - from) / scale, static_cast<int64_t>(id_of(keys[i])));
    // Quotients may be equal where dividends were not: then the lower id is first.
    sort_again();
    return scale;
  }
  // Edits the logits of those that are left, which stand in scratch.row; `due`: they are to be divided by it
  // first. False: nothing is left that can be drawn.
  bool edit(int32_t stage, const SampleState& s, float due, Scratch& of) {
    float* row = of.row.data();
    if (open) {
      forget_first();
      if (due != 1.0f)
        for (int64_t i = 0; i < n; ++i) row[i] /= due;
      edit_by(stage, row, s, of);
      float top = -kInf;
      for (int64_t i = 0; i < n; ++i)
        if (x[i] > -kInf) top = std::max(top, row[i]);
      if (top == -kInf) return false;
      for (int64_t i = 0; i < n; ++i)
        if (x[i] > -kInf) x[i] = row[i] - top;
      begin();
      return true;
    }
    if (due != 1.0f)
      for (size_t i = first; i < end; ++i) row[id_of(keys[i])] /= due;
    edit_by(stage, row, s, of);
    float top = -kInf;
    for (size_t i = first; i < end; ++i) top = std::max(top, row[id_of(keys[i])]);
    if (top == -kInf) return false;
    for (size_t i = first; i < end; ++i) {
      const int32_t id = id_of(keys[i]);
      keys[i] = key_of(row[id] - top, id);
    }
    sort_again();
    return true;
  }
  // Takes those before the run out of x.
  void forget_first() {
    for (size_t i = 0; i < first; ++i) x[id_of(keys[i])] = -kInf;
  }
  void sort_again() {
    const auto from = keys.begin() + static_cast<int64_t>(first),
               to = keys.begin() + static_cast<int64_t>(end);
    if (!std::is_sorted(from, to)) std::sort(from, to);
    for (size_t i = first; i < end; ++i) w[i] = weight(x_of(keys[i]));
  }
  // Ends the run before the first that is below x, but not before its first.
  void from_x(float least) {
    best();
    size_t at = first + 1;
    while (reach(at) && x_of(keys[at]) >= least) ++at;
    close(at);
  }
  void min_x(float least) {
    const float from = best();
    size_t at = first + 1;
    while (reach(at) && x_of(keys[at]) - from >= least) ++at;
    close(at);
  }
  void top(uint64_t k) {
    if (k < static_cast<uint64_t>(n) && reach(first + k)) close(first + k);
  }
  void top_share(uint64_t part) {
    const uint64_t need = std::max<uint64_t>(1, share53(part, total()));
    uint64_t sum = 0;
    size_t at = first;
    while (sum < need && reach(at)) sum += w[at++];
    close(at);
  }
  void typical(uint64_t part) {
    const uint64_t need = std::max<uint64_t>(1, share53(part, total()));
    const double mean = surprise();
    auto far = [&](size_t i) { return -static_cast<double>(x_of(keys[i])) - mean; };
    size_t high = first;  // [low, high) is kept; it grows at the end that is nearer
    while (weighs(high) && far(high) <= 0.0) ++high;
    size_t low = high;
    for (uint64_t sum = 0; sum < need;) {
      const bool up = low > first && (!weighs(high) || -far(low - 1) <= far(high));
      sum += up ? w[--low] : w[high++];
    }
    first = low;
    close(high);
  }
  void exclude(const SampleState& s) {
    const uint64_t least = std::max<uint64_t>(1, share53(s.xtc_threshold, total()));
    size_t above = 0;
    while (reach(first + above) && w[first + above] >= least) ++above;
    if (above > 1) first += above - 1;
  }
};

// Natural log of softmax: from the exact mass of the row, so that its bits depend on the row only.
struct LogSoftmax {
  double best, norm;
  LogSoftmax(const float* v, int64_t n, float top)
      : best(top), norm(std::log(static_cast<double>(total_weight(v, n, top))) - kLogWeightOne) {}
  float of(float value) const { return static_cast<float>(static_cast<double>(value) - best - norm); }
};

// The `wanted` largest of v, the lower id first among equals; places that are not filled get -1.
void top_tokens(const float* v, int64_t n, int32_t wanted, const LogSoftmax& log, int32_t* ids,
                float* logprobs) {
  float best[kMaxLogprobs];
  int have = 0;
  for (int64_t i = 0; i < n && wanted > 0; ++i) {
    if (have == wanted && !(v[i] > best[have - 1])) continue;
    int at = have < wanted ? have++ : have - 1;
    for (; at > 0 && v[i] > best[at - 1]; --at) best[at] = best[at - 1], ids[at] = ids[at - 1];
    best[at] = v[i];
    ids[at] = static_cast<int32_t>(i);
  }
  for (int j = 0; j < have; ++j) logprobs[j] = log.of(best[j]);
  for (int j = have; j < kMaxLogprobs; ++j) ids[j] = -1, logprobs[j] = -kInf;
}

// Where the logprobs of what is drawn from go.
struct Report {
  int32_t wanted;
  float* own;
  int32_t* ids;
  float* logprobs;

  void end(int32_t have) const {
    for (int32_t j = have; j < kMaxLogprobs; ++j) ids[j] = -1, logprobs[j] = -kInf;
  }
};

// Stages in any order: sorted is what they look at. -1: an edit left nothing.
int32_t draw_in_order(const SampleState& s, const float* row, int64_t n, float best, int64_t position,
                      Scratch& scratch, const Report& report) {
  auto has = [&](auto what) { return std::any_of(s.cuts.begin(), s.cuts.end(), what); };
  const bool edits = has([](int32_t cut) { return cut >= kPenalties; });
  const bool raises = edits || has([](int32_t cut) { return cut == kTemperature; });
  scratch.x.resize(static_cast<size_t>(n));
  scale_row(row, n, best, 1.0f, scratch.x.data());
  Run run{scratch.x.data(), n, scratch, raises ? std::numeric_limits<float>::lowest() : kWeightFrom};
  run.begin();
  if (edits && row != scratch.row.data()) scratch.row.assign(row, row + n);
  const double sigma = has([](int32_t cut) { return cut == kTopNSigma; }) ? deviation(row, n, best) : 0.0;
  float scale = 1.0f,
        due = 1.0f;  // the temperature that was applied, and of that what the row has not got yet
  for (const int32_t cut : s.cuts) switch (cut) {
      case kTemperature:
        scale = due = run.temper(s);
        if (!edits) run.floor = kWeightFrom;
        break;
      case kPenalties:
      case kDry:
        if (!run.edit(cut, s, std::exchange(due, 1.0f), scratch)) return -1;
        break;
      case kTopNSigma:
        run.from_x(static_cast<float>(static_cast<double>(run.best()) -
                                      s.top_n_sigma * (sigma / static_cast<double>(scale))));
        break;
      case kTopK:
        run.top(static_cast<uint64_t>(s.top_k));
        break;
      case kTypicalP:
        run.typical(s.typical_p);
        break;
      case kTopP:
        run.top_share(s.top_p);
        break;
      case kMinP:
        run.min_x(s.min_x);
        break;
      default:
        if (philox_bits53(s.seed, s.choice, static_cast<uint64_t>(position), 1) < s.xtc_probability)
          run.exclude(s);
    }
  const uint64_t bits = philox_bits53(s.seed, s.choice, static_cast<uint64_t>(position), 0);
  const uint64_t total = run.total(), target = share53(bits, total);
  run.reach(run.first);
  size_t drawn = run.first;
  for (uint64_t sum = run.w[drawn]; sum <= target && run.reach(drawn + 1);) sum += run.w[++drawn];
  if (s.processed) {
    const double norm = std::log(static_cast<double>(total));
    auto log = [&](size_t i) { return static_cast<float>(std::log(static_cast<double>(run.w[i])) - norm); };
    *report.own = log(drawn);
    int32_t have = 0;
    for (size_t i = run.first; have < report.wanted && run.weighs(i); ++i, ++have)
      report.ids[have] = id_of(run.keys[i]), report.logprobs[have] = log(i);
    report.end(have);
  }
  return id_of(run.keys[drawn]);
}

// The row after edits, bias, allowed_token_ids, min_tokens and grammar: the row itself if nothing changes it.
const float* edit(const float* v, int64_t n, const SampleState& s, int64_t position, Scratch& scratch) {
  const bool held = position < s.held_until && !s.held_ids.empty();
  const bool edited = std::any_of(s.edits.begin(), s.edits.end(), [&](int32_t stage) {
    return stage == kDry ? s.dry.multiplier > 0 : s.penalized;
  });
  if (!edited && s.bias.empty() && s.only.empty() && s.bad.empty() && !held && s.allowed.empty()) return v;
  scratch.row.assign(v, v + n);
  float* row = scratch.row.data();
  for (const int32_t stage : s.edits) edit_by(stage, row, s, scratch);
  for (const auto& [id, value] : s.bias) row[id] += value;
  if (!s.only.empty()) {
    float* from = row;
    for (const int32_t id : s.only) {
      std::fill(from, row + id, -kInf);
      from = row + id + 1;
    }
    std::fill(from, row + n, -kInf);
  }
  for (const auto& sequence : s.bad)
    if (s.completes(sequence)) row[sequence.back()] = -kInf;
  if (held)
    for (const int32_t id : s.held_ids) row[id] = -kInf;
  if (!s.allowed.empty())
    for (int64_t i = 0; i < n; ++i)
      if (!(s.allowed[static_cast<size_t>(i >> 5)] >> (i & 31) & 1)) row[i] = -kInf;
  return row;
}

SampleStatus unfit(float best) {
  if (best != best || best == kInf) return kNotFinite;
  return best == -kInf ? kAllBanned : kSampleOk;
}

// Draws from v, whose largest logit is `best`.
SampleStatus sample_row(const float* v, int64_t n, float best, const SampleState& s, int64_t position,
                        Scratch& scratch, const Report& report, int32_t& token) {
  const float* row = edit(v, n, s, position, scratch);
  if (row != v) {
    best = largest(row, n);
    const SampleStatus status = unfit(best);
    if (status != kSampleOk) return status;
  }
  if (s.temperature == 0.0f) {
    token = static_cast<int32_t>(first_equal(row, n, best));
    if (s.processed) {
      const LogSoftmax log(row, n, best);
      *report.own = log.of(row[token]);
      top_tokens(row, n, report.wanted, log, report.ids, report.logprobs);
      report.end(static_cast<int32_t>(std::find(report.logprobs, report.logprobs + kMaxLogprobs, -kInf) -
                                      report.logprobs));
    }
    return kSampleOk;
  }
  if (!s.plain) {
    token = draw_in_order(s, row, n, best, position, scratch, report);
    return token < 0 ? kAllBanned : kSampleOk;
  }
  scratch.x.resize(static_cast<size_t>(n));
  float* x = scratch.x.data();
  scale_row(row, n, best, s.temperature, x);
  const uint64_t bits = philox_bits53(s.seed, s.choice, static_cast<uint64_t>(position), 0);
  token =
      s.top_k > 0 && s.top_k < n ? draw_top_k(s, x, n, bits, scratch) : draw_by_mass(s, x, n, bits, scratch);
  return kSampleOk;
}

Scratch& scratch_of_thread() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace

uint64_t philox_bits53(uint64_t seed, uint32_t choice, uint64_t position, uint32_t stage) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = choice,
           c3 = stage;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (static_cast<uint64_t>(c1) << 32 | c0) >> 11;
}

void sample_rows(const float* logits, int64_t vocab, const SampleState* const* states, const int32_t* rows,
                 const int64_t* positions, int64_t n, const SampleOut& out, Pool* pool) {
  std::atomic<int64_t> next{0};
  auto take = [&](int) {
    Scratch& scratch = scratch_of_thread();
    for (int64_t i = next++; i < n; i = next++) {
      const SampleState& s = *states[i];
      const float* v = logits + rows[i] * vocab;
      out.tokens[i] = -1;
      out.logprobs[i] = 0.0f;
      const float top = largest(v, vocab);
      const bool told = s.logprobs >= 0;
      const Report report{s.logprobs, out.logprobs + i, told ? out.top_ids + i * kMaxLogprobs : nullptr,
                          told ? out.top_logprobs + i * kMaxLogprobs : nullptr};
      out.status[i] = unfit(top);
      if (out.status[i] == kSampleOk)
        out.status[i] = sample_row(v, vocab, top, s, positions[i], scratch, report, out.tokens[i]);
      if (out.status[i] != kSampleOk || !told || s.processed) continue;
      const LogSoftmax log(v, vocab, top);
      *report.own = log.of(v[out.tokens[i]]);
      top_tokens(v, vocab, s.logprobs, log, report.ids, report.logprobs);
    }
  };
  if (pool && n > 1)
    pool->run(take);
  else
    take(0);
}

void score_rows(const float* logits, int64_t vocab, const int32_t* tokens, int64_t n, int32_t wanted,
                const SampleOut& out) {
  for (int64_t i = 0; i < n; ++i) {
    const float* v = logits + i * vocab;
    const float top = largest(v, vocab);
    out.status[i] = unfit(top);
    if (out.status[i] != kSampleOk) continue;
    const LogSoftmax log(v, vocab, top);
    out.logprobs[i] = log.of(v[tokens[i]]);
    top_tokens(v, vocab, wanted, log, out.top_ids + i * kMaxLogprobs, out.top_logprobs + i * kMaxLogprobs);
  }
}

}  // namespace pellucid
