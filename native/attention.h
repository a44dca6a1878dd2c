// Attention of query vectors over one chunk of 256 keys, and the merge of chunks. Included only by isa_*.cpp.
// Law: chunks begin at absolute multiples of 256 keys. A chunk's partial result (maximum, sum, weighted
// values) depends on the query, its own range of keys and the cache, never on the other queries beside it;
// partials merge in chunk order. So prefill, decode and any split of the chunks over threads give the same
// bits. A value that a query does not see is not even multiplied by zero: what lies there may be NaN.
//
// Keys and values are floats before anything is computed with them, whatever their format. A few queries take
// them from the cache as they go; many have the chunk made floats once, in scratch memory.
//
// Source of the online softmax: Milakov & Gimelshein 2018; of the tiling: Dao et al. 2022.
#pragma once

#include "ops.h"
#include "row_kernels.h"

namespace pellucid {
namespace {

constexpr int kGroups = kChunk / kKeyGroup;

// Rows of queries and of scores lie a little further apart than a power of two, so that those of one tile do
// not meet in one set of the cache.
constexpr int kQueryStride = kMaxHead + 16, kScoreStride = kChunk + 16;

// 2^y for y <= 0, to about 1 ulp: y = n + r, a polynomial in r (minimax on [-1/2, 1/2]), times 2^n. Below
// -125 the result is 0 (no denormals), -infinity included; NaN stays NaN.
template <class S>
PELLUCID_INLINE typename S::F exp2_below_0(typename S::F y) {
  using F = typename S::F;
  const F round = S::set1(0x1.8p23f + 127.0f);  // the sum's low bits are n + 127
  const F shifted = S::add(y, round);
  const F r = S::sub(y, S::sub(shifted, round));
  F p = S::set1(0x1.41d334p-13f);
  p = S::fma(p, r, S::set1(0x1.5f456ap-10f));
  p = S::fma(p, r, S::set1(0x1.3b2dbcp-7f));
  p = S::fma(p, r, S::set1(0x1.c6aed4p-5f));
  p = S::fma(p, r, S::set1(0x1.ebfbdap-3f));
  p = S::fma(p, r, S::set1(0x1.62e430p-1f));
  p = S::fma(p, r, S::set1(1.0f));
  const F scale = S::as_float(S::template shl_i<23>(S::as_int(shifted)));
  return S::zero_where_less(S::mul(p, scale), y, S::set1(-125.0f));
}

// Groups of values that are fetched ahead of those at hand, in the order in which they are read: a core has
// few fetches under way at once, so what is fetched early only pushes out what is needed sooner. Four
// kilobytes ahead hide memory; a whole chunk ahead took up to a third longer.
constexpr int kGroupsAhead = 2;

// Where the keys and values of a chunk lie: of the groups of 16 from group0 to group1, the keys (transposed)
// and the first value. After the last keys stands what is read next, the first values; `next` is read after
// the last values.
struct Places {
  const uint8_t *k[kGroups + 4], *v[kGroups], *next[kGroupsAhead];
  int group0, group1, d, v_stride;
  const float* v_scales;  // of q8_0: d / 32 a key

  // What comes kGroupsAhead groups of values after group g, in a pass over columns whose next one lies `step`
  // bytes further on; 0: this is the last pass.
  PELLUCID_INLINE const uint8_t* ahead(int g, int step) const {
    if (g + kGroupsAhead <= group1) return v[g + kGroupsAhead];
    const int over = g + kGroupsAhead - group1 - 1;
    return step ? v[group0 + over < group1 ? group0 + over : group1] + step : next[over];
  }
};

// How 16 keys of dimension i, or 16 values from i on of a token, are read. kStreams: they come from memory.
template <class S>
struct Halves {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false, kStreams = true;
  static PELLUCID_INLINE typename S::F key(const uint8_t* p, int i) { return value(p, kKeyGroup * i); }
  static PELLUCID_INLINE typename S::F value(const uint8_t* p, int i) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(p) + i);
  }
};
template <class S>
struct Codes {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true, kStreams = true;
  static PELLUCID_INLINE typename S::F key(const uint8_t* p, int i) { return value(p, kKeyGroup * i); }
  static PELLUCID_INLINE typename S::F value(const uint8_t* p, int i) {
    return S::load_i8(reinterpret_cast<const int8_t*>(p) + i);
  }
};
// Values in panels of 32 dimensions: a pass over the keys of a chunk reads one piece of memory.
template <class S>
struct Floats {
  static constexpr int kBytes = 4, kPanel = 32;
  static constexpr bool kScaled = false, kStreams = false;
  static PELLUCID_INLINE typename S::F key(const uint8_t* p, int i) {
    return S::load(reinterpret_cast<const float*>(p) + kKeyGroup * i);
  }
  static PELLUCID_INLINE typename S::F value(const uint8_t* p, int i) {
    return S::load(reinterpret_cast<const float*>(p) + i / kPanel * kPanel * kChunk + i % kPanel);
  }
};
template <class S, KvFormat format>
struct SourceOf {
  using type = Halves<S>;
};
template <class S>
struct SourceOf<S, KvFormat::q8_0> {
  using type = Codes<S>;
};

// The vectors of floats of a group's keys, dimension after dimension: visit(i, G vectors).
template <class S, class Source, int G, class Visit>
PELLUCID_INLINE void each_dimension(const uint8_t* const* k, int d, Visit&& visit) {
  const int step = Source::kScaled ? 32 : d;
  for (int i0 = 0; i0 < d; i0 += step) {
    typename S::F scales[G], keys[G];
    if constexpr (Source::kScaled) {
      for (int g = 0; g < G; ++g) {
        const auto* halves = reinterpret_cast<const uint16_t*>(k[g] + kKeyGroup * d);
        scales[g] = S::load_f16(halves + i0 / 32 * kKeyGroup);
      }
    }
    for (int i = i0; i < i0 + step; ++i) {
      PELLUCID_UNROLL for (int g = 0; g < G; ++g) {
        keys[g] = Source::key(k[g], i);
        if constexpr (Source::kScaled) keys[g] = S::mul(keys[g], scales[g]);
      }
      visit(i, keys);
    }
  }
}

template <class S, class Source>
PELLUCID_INLINE typename S::F value_of(const Places& c, const uint8_t* v, int key, int i) {
  if constexpr (Source::kScaled) {
    return S::mul(Source::value(v, i), S::set1(c.v_scales[key * (c.d / 32) + i / 32]));
  } else {
    return Source::value(v, i);
  }
}

// Scores of M queries against G groups of 16 keys: each a chain over the dimensions, times `factor`.
template <class S, class Source, int M, int G>
inline void score_groups(const Places& c, int group, const float* q, float factor, float* scores) {
  using F = typename S::F;
  const uint8_t *k[G], *ahead[G];
  F sum[G][M];
  for (int g = 0; g < G; ++g) {
    k[g] = c.k[group + g];
    ahead[g] = c.k[group + g + G];
    for (int m = 0; m < M; ++m) sum[g][m] = S::zero();
  }
  each_dimension<S, Source, G>(k, c.d, [&](int i, const F* keys) {
    if constexpr (Source::kStreams) {
      PELLUCID_UNROLL for (int g = 0; g < G; ++g) prefetch(ahead[g] + i * kKeyGroup * Source::kBytes);
    }
    PELLUCID_UNROLL for (int m = 0; m < M; ++m) {
      const F query = S::set1(q[m * kQueryStride + i]);
      PELLUCID_UNROLL for (int g = 0; g < G; ++g) sum[g][m] = S::fma(query, keys[g], sum[g][m]);
    }
  });
  for (int g = 0; g < G; ++g)
    for (int m = 0; m < M; ++m)
      S::store(scores + m * kScoreStride + (group + g) * kKeyGroup, S::mul(sum[g][m], S::set1(factor)));
}

// acc[m][i .. i + 16 B] += Σ p[m][key] · V[key] over `keys` of the chunk, one chain a value, for M queries
// that see the same keys. `count` values of the last vector are there.
template <class S, class Source, int M, int B>
inline void weigh_block(const Places& c, int first, int last, const float* p, float* acc, int i, int count) {
  using F = typename S::F;
  F sum[B][M];
  for (int b = 0; b < B; ++b)
    for (int m = 0; m < M; ++m) sum[b][m] = load_upto<S>(acc + m * c.d + i + 16 * b, b == B - 1 ? count : 16);
  for (int key = first; key <= last;) {
    const int g = key / kKeyGroup, end = last < (g + 1) * kKeyGroup - 1 ? last : (g + 1) * kKeyGroup - 1;
    const uint8_t* v = c.v[g] + (key % kKeyGroup) * c.v_stride;
    const uint8_t* ahead = v;
    if constexpr (Source::kStreams) {
      ahead = c.ahead(g, i + 16 * B < c.d ? 16 * B * Source::kBytes : 0) + (key % kKeyGroup) * c.v_stride;
    }
    for (; key <= end; ++key, v += c.v_stride, ahead += c.v_stride) {
      F values[B];
      PELLUCID_UNROLL for (int b = 0; b < B; ++b) {
        values[b] = value_of<S, Source>(c, v, key, i + 16 * b);
        if constexpr (Source::kStreams) {
          if (16 * Source::kBytes * b % 64 == 0) prefetch(ahead + Source::kBytes * (i + 16 * b));
        }
      }
      PELLUCID_UNROLL for (int m = 0; m < M; ++m) {
        const F weight = S::set1(p[m * kScoreStride + key]);
        PELLUCID_UNROLL for (int b = 0; b < B; ++b) sum[b][m] = S::fma(weight, values[b], sum[b][m]);
      }
    }
  }
  for (int b = 0; b < B; ++b)
    for (int m = 0; m < M; ++m) store_upto<S>(acc + m * c.d + i + 16 * b, sum[b][m], b == B - 1 ? count : 16);
}

// Vectors that M queries leave room for in registers, at least one.
template <class S, int M>
constexpr int kWidth = S::kAccumulators / M >= 4   ? 4
                       : S::kAccumulators / M >= 2 ? 2
                                                   : 1;

template <class S, class Source, int M>
inline void weigh_values(const Places& c, int first, int last, const float* p, float* acc) {
  constexpr int B = kWidth<S, M>;
  int i = 0;
  for (; i + 16 * B <= c.d; i += 16 * B) weigh_block<S, Source, M, B>(c, first, last, p, acc, i, 16);
  for (; i < c.d; i += 16)
    weigh_block<S, Source, M, 1>(c, first, last, p, acc, i, c.d - i < 16 ? c.d - i : 16);
}

// Scores in [0, count) to weights; those outside [lo, hi] are not seen. Returns the maximum and the sum.
template <class S>
inline void soften(float* s, int lo, int hi, float cap, float* max, float* sum) {
  using F = typename S::F;
  const int begin = lo / kKeyGroup * kKeyGroup, end = (hi / kKeyGroup + 1) * kKeyGroup;
  if (cap != 0.0f) {
    soft_cap<S>(s + begin, cap, end - begin, s + begin);
    scale<S>(s + begin, kLog2E, end - begin, s + begin);
  }
  for (int i = begin; i < lo; ++i) s[i] = -__builtin_inff();
  for (int i = hi + 1; i < end; ++i) s[i] = -__builtin_inff();
  F most = S::load(s + begin);
  for (int i = begin + 16; i < end; i += 16) most = S::max(most, S::load(s + i));
  *max = S::reduce_max(most);
  const F top = S::set1(*max);
  F total = S::zero();
  for (int i = begin; i < end; i += 16) {
    const F w = exp2_below_0<S>(S::sub(S::load(s + i), top));
    S::store(s + i, w);
    total = S::add(total, w);
  }
  *sum = S::reduce_add(total);
}

// M queries from `at` on.
template <class S, class Source, int M>
void attend_tile(const AttendChunk& a, const Places& c, int at) {
  const int base = a.chunk * kChunk, d = c.d;
  alignas(64) float q[M * kQueryStride];
  alignas(64) float scores[M * kScoreStride];
  int lo[M], hi[M];  // the keys that each query sees, in the chunk
  int first = kChunk, last = 0, from = 0, to = kChunk;
  for (int m = 0; m < M; ++m) {
    lo[m] = a.first[at + m] > base ? a.first[at + m] - base : 0;
    hi[m] = a.last[at + m] < base + kChunk ? a.last[at + m] - base : kChunk - 1;
    first = lo[m] < first ? lo[m] : first;
    last = hi[m] > last ? hi[m] : last;
    from = lo[m] > from ? lo[m] : from;
    to = hi[m] < to ? hi[m] : to;
    by_16(d, [&](int i, int count) {
      store_upto<S>(q + m * kQueryStride + i, load_upto<S>(a.q[at + m] + i, count), count);
    });
  }
  constexpr int G = kWidth<S, M>;
  const float factor = a.cap != 0.0f ? a.scale : a.scale * kLog2E;
  int group = first / kKeyGroup;
  const int groups = last / kKeyGroup + 1;
  for (; group + G <= groups; group += G) score_groups<S, Source, M, G>(c, group, q, factor, scores);
  for (; group < groups; ++group) score_groups<S, Source, M, 1>(c, group, q, factor, scores);

  float* acc = a.acc + int64_t{at} * d;
  for (int m = 0; m < M; ++m)
    soften<S>(scores + m * kScoreStride, lo[m], hi[m], a.cap, a.max + at + m, a.sum + at + m);
  for (int i = 0; i < M * d; ++i) acc[i] = 0.0f;
  // The keys that all see go together; what only some see before and after them goes one query at a time.
  if (first != from || last != to) {
    for (int m = 0; m < M; ++m)
      weigh_values<S, Source, 1>(c, lo[m], from <= to ? from - 1 : hi[m], scores + m * kScoreStride,
                                 acc + m * d);
    if (from > to) return;
  }
  weigh_values<S, Source, M>(c, from, to, scores, acc);
  if (last == to) return;
  for (int m = 0; m < M; ++m)
    weigh_values<S, Source, 1>(c, to + 1, hi[m], scores + m * kScoreStride, acc + m * d);
}

// The instance for exactly n queries.
template <class S, class Source, int M>
inline void attend_n(const AttendChunk& a, const Places& c, int at, int n) {
  if constexpr (M > 1) {
    if (n < M) return attend_n<S, Source, M - 1>(a, c, at, n);
  }
  attend_tile<S, Source, M>(a, c, at);
}

// All queries, in tiles of nearly the same size, each of as many as registers hold.
template <class S, class Source>
inline void attend_all(const AttendChunk& a, const Places& c) {
  const int tiles = (a.queries + S::kQueryTile - 1) / S::kQueryTile;
  for (int t = 0; t < tiles; ++t) {
    const int at = a.queries * t / tiles;
    attend_n<S, Source, S::kQueryTile>(a, c, at, a.queries * (t + 1) / tiles - at);
  }
}

// The keys of [first, last] of the chunk as floats; of a group's keys all, of values no other.
template <class S, class Source>
inline Places floats_of(const Places& c, int first, int last, float* scratch) {
  const int d = c.d, panels = (d + 31) / 32;
  float* values = scratch + int64_t{kChunk} * d;
  Places f{};
  f.group0 = c.group0;
  f.group1 = c.group1;
  f.d = d;
  f.v_stride = Floats<S>::kPanel * 4;
  for (int g = c.group0; g <= c.group1; ++g) {
    float* keys = scratch + int64_t{g} * kKeyGroup * d;
    each_dimension<S, Source, 1>(
        c.k + g, d, [&](int i, const typename S::F* k) { S::store(keys + i * kKeyGroup, k[0]); });
    f.k[g] = reinterpret_cast<const uint8_t*>(keys);
    f.v[g] = reinterpret_cast<const uint8_t*>(values + g * kKeyGroup * Floats<S>::kPanel);
  }
  for (int key = first; key <= last; ++key) {
    const uint8_t* v = c.v[key / kKeyGroup] + (key % kKeyGroup) * c.v_stride;
    float* to = values + key * Floats<S>::kPanel;
    for (int p = 0; p < panels; ++p, to += kChunk * Floats<S>::kPanel)
      for (int i = 32 * p; i < 32 * p + 32 && i < d; i += 16)
        S::store(to + i % 32, value_of<S, Source>(c, v, key, i));
  }
  return f;
}

template <class S, KvFormat format>
void attend(const AttendChunk& a) {
  using Source = typename SourceOf<S, format>::type;
  const KvLayout& kv = *a.kv;
  const int base = a.chunk * kChunk, blocks = kv.d_head / 32;
  int first = kChunk, last = 0;
  for (int i = 0; i < a.queries; ++i) {
    const int lo = a.first[i] - base, hi = a.last[i] - base;
    first = lo < first ? (lo > 0 ? lo : 0) : first;
    last = hi > last ? (hi < kChunk ? hi : kChunk - 1) : last;
  }
  alignas(64) float v_scales[Source::kScaled ? kChunk * kMaxHead / 32 : 1];
  Places c{};
  c.group0 = first / kKeyGroup;
  c.group1 = last / kKeyGroup;
  c.d = kv.d_head;
  c.v_stride = kv.v_stride();
  c.v_scales = v_scales;
  for (int g = c.group0; g <= c.group1; ++g) {
    const int key = base + g * kKeyGroup, page = a.page_table[key / kv.page_size], slot = key % kv.page_size;
    const uint8_t* values = kv.v(a.layer, page, a.kv_head);
    c.k[g] = kv.k(a.layer, page, a.kv_head) + slot / kKeyGroup * kv.k_group_bytes();
    c.v[g] = values + int64_t{slot} * kv.v_stride();
    if constexpr (Source::kScaled) {
      const auto* halves =
          reinterpret_cast<const uint16_t*>(values + int64_t{kv.page_size} * kv.d_head) + slot * blocks;
      for (int i = 0; i < blocks * kKeyGroup; i += 16)
        S::store(v_scales + g * kKeyGroup * blocks + i, S::load_f16(halves + i));
    }
  }
  for (int i = 0; i < 4; ++i) c.k[c.group1 + 1 + i] = c.v[c.group0 + i < c.group1 ? c.group0 + i : c.group1];
  for (int i = 0; i < kGroupsAhead; ++i) {
    const int key = a.next.first + i * kKeyGroup;
    c.next[i] = c.v[c.group1];
    if (a.next.page_table && key <= a.next.last) {
      c.next[i] = kv.k(a.layer, a.next.page_table[key / kv.page_size], a.next.kv_head) +
                  key % kv.page_size / kKeyGroup * kv.k_group_bytes();
    }
  }
  if (a.queries <= 2 * S::kQueryTile) {
    attend_all<S, Source>(a, c);
  } else {
    attend_all<S, Floats<S>>(a, floats_of<S, Source>(c, first, last, a.scratch));
  }
}

// Folds a chunk's partials of n queries into the running ones: both are rescaled to the common maximum.
template <class S>
void merge_chunk(int n, int d, float* max, float* sum, float* acc, const float* part_max,
                 const float* part_sum, const float* part) {
  using F = typename S::F;
  by_16(n, [&](int i0, int count) {
    alignas(64) float keep[16], take[16];
    const F ours = load_upto<S>(max + i0, count), theirs = load_upto<S>(part_max + i0, count);
    const F top = S::max(ours, theirs);
    const F kept = exp2_below_0<S>(S::sub(ours, top)), taken = exp2_below_0<S>(S::sub(theirs, top));
    S::store(keep, kept);
    S::store(take, taken);
    store_upto<S>(max + i0, top, count);
    const F more = S::mul(load_upto<S>(part_sum + i0, count), taken);
    store_upto<S>(sum + i0, S::fma(load_upto<S>(sum + i0, count), kept, more), count);
    for (int j = 0; j < count; ++j) {
      float* to = acc + int64_t{i0 + j} * d;
      const float* from = part + int64_t{i0 + j} * d;
      by_16(d, [&](int i, int values) {
        const F added = S::mul(load_upto<S>(from + i, values), S::set1(take[j]));
        store_upto<S>(to + i, S::fma(load_upto<S>(to + i, values), S::set1(keep[j]), added), values);
      });
    }
  });
}

template <class S>
constexpr RowKernels row_kernels() {
  return {&rms_norm<S>,
          &layer_norm<S>,
          &multiply<S>,
          &add<S>,
          &scale<S>,
          &soft_cap<S>,
          &activate<S>,
          &glu<S>,
          &rope<S>,
          &store_kv<S>,
          {&attend<S, KvFormat::f16>, &attend<S, KvFormat::q8_0>},
          &merge_chunk<S>};
}

}  // namespace
}  // namespace pellucid
