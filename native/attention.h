// Attention of a few query vectors over one chunk of 256 keys, and the merge of chunks. Included only by
// isa_*.cpp. Law: chunks begin at absolute multiples of 256 keys. A chunk's partial result (maximum, sum,
// weighted values) depends on the query, its own range of keys and the cache, never on the other queries
// beside it; partials merge in chunk order. So prefill, decode and any split of the chunks over threads give
// the same bits.
//
// Source of the online softmax: Milakov & Gimelshein 2018; of the tiling: Dao et al. 2022.
#pragma once

#include "ops.h"
#include "row_kernels.h"

namespace pellucid {
namespace {

constexpr int kGroups = kChunk / kKeyGroup;

// Where the groups of 16 tokens of a chunk lie, and the scales of their values.
template <class S, KvFormat format>
struct Groups {
  const uint8_t* k[kGroups];
  const uint8_t* v[kGroups];
  // q8_0: d_head / 32 a key. As floats, since each is used for a vector of values and for several queries.
  alignas(64) float v_scales[format == KvFormat::q8_0 ? kChunk * kMaxHead / 32 : 1];

  Groups(const AttendChunk& a, int first, int last) {
    const KvLayout& kv = *a.kv;
    for (int g = first; g <= last; ++g) {
      const int key = a.chunk * kChunk + g * kKeyGroup, page = a.page_table[key / kv.page_size],
                slot = key % kv.page_size;
      const uint8_t* values = kv.v(a.layer, page, a.kv_head);
      k[g] = kv.k(a.layer, page, a.kv_head) + slot / kKeyGroup * kv.k_group_bytes();
      v[g] = values + int64_t{slot} * kv.v_stride();
      if constexpr (format == KvFormat::q8_0) {
        const int blocks = kv.d_head / 32;
        const auto* halves =
            reinterpret_cast<const uint16_t*>(values + int64_t{kv.page_size} * kv.d_head) + slot * blocks;
        for (int i = 0; i < blocks * kKeyGroup; i += 16)
          S::store(v_scales + g * kKeyGroup * blocks + i, S::load_f16(halves + i));
      }
    }
  }
};

// 16 keys of dimension i, or 16 values from offset i of a token, as floats.
template <class S, KvFormat format>
PELLUCID_INLINE typename S::F load_codes(const uint8_t* p, int i) {
  if constexpr (format == KvFormat::f16) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(p) + i);
  } else {
    return S::load_i8(reinterpret_cast<const int8_t*>(p) + i);
  }
}

// Scores of M queries against G groups of 16 keys: each a chain over the dimensions (q8_0: chains of 32,
// scaled and added).
template <class S, KvFormat format, int M, int G>
inline void score_groups(const KvLayout& kv, const uint8_t* const* groups, const float* const* q, float scale,
                         float (*scores)[kChunk], int at) {
  using F = typename S::F;
  constexpr int kStep = format == KvFormat::f16 ? kMaxHead : 32;
  const int d = kv.d_head;
  F total[G][M];
  for (int g = 0; g < G; ++g)
    for (int m = 0; m < M; ++m) total[g][m] = S::zero();
  for (int i0 = 0; i0 < d; i0 += kStep) {
    const int end = format == KvFormat::f16 ? d : i0 + 32;
    F part[G][M];
    for (int g = 0; g < G; ++g)
      for (int m = 0; m < M; ++m) part[g][m] = S::zero();
    for (int i = i0; i < end; ++i) {
      F keys[G];
      PELLUCID_UNROLL for (int g = 0; g < G; ++g) keys[g] = load_codes<S, format>(groups[g], i * kKeyGroup);
      PELLUCID_UNROLL for (int m = 0; m < M; ++m) {
        const F query = S::set1(q[m][i]);
        PELLUCID_UNROLL for (int g = 0; g < G; ++g) part[g][m] = S::fma(query, keys[g], part[g][m]);
      }
    }
    for (int g = 0; g < G; ++g) {
      for (int m = 0; m < M; ++m) {
        if constexpr (format == KvFormat::f16) {
          total[g][m] = part[g][m];
        } else {
          const auto* key_scales = reinterpret_cast<const uint16_t*>(groups[g] + int64_t{kKeyGroup} * d);
          total[g][m] = S::fma(part[g][m], S::load_f16(key_scales + i0 / 32 * kKeyGroup), total[g][m]);
        }
      }
    }
  }
  for (int g = 0; g < G; ++g)
    for (int m = 0; m < M; ++m) S::store(scores[m] + at + g * kKeyGroup, S::mul(total[g][m], S::set1(scale)));
}

// acc[m][i .. i + 16 B] += Σ p[m][key] · V[key] over `keys` of the chunk, one chain a value, for M queries
// that see the same keys. `count` values of the last vector are there.
template <class S, KvFormat format, int M, int B>
inline void weigh_block(const KvLayout& kv, const Groups<S, format>& groups, int first, int last,
                        const float* const* p, float* const* acc, int i, int count) {
  using F = typename S::F;
  const int stride = kv.v_stride(), blocks = kv.d_head / 32;
  F sum[B][M];
  for (int b = 0; b < B; ++b)
    for (int m = 0; m < M; ++m) sum[b][m] = load_upto<S>(acc[m] + i + 16 * b, b == B - 1 ? count : 16);
  for (int key = first; key <= last;) {
    const int g = key / kKeyGroup, end = last < (g + 1) * kKeyGroup - 1 ? last : (g + 1) * kKeyGroup - 1;
    const uint8_t* v = groups.v[g] + (key % kKeyGroup) * stride;
    for (; key <= end; ++key, v += stride) {
      F values[B];
      PELLUCID_UNROLL for (int b = 0; b < B; ++b) {
        values[b] = load_codes<S, format>(v, i + 16 * b);
        if constexpr (format == KvFormat::q8_0) {
          values[b] = S::mul(values[b], S::set1(groups.v_scales[key * blocks + (i + 16 * b) / 32]));
        }
      }
      PELLUCID_UNROLL for (int m = 0; m < M; ++m) {
        const F weight = S::set1(p[m][key]);
        PELLUCID_UNROLL for (int b = 0; b < B; ++b) sum[b][m] = S::fma(weight, values[b], sum[b][m]);
      }
    }
  }
  for (int b = 0; b < B; ++b)
    for (int m = 0; m < M; ++m) store_upto<S>(acc[m] + i + 16 * b, sum[b][m], b == B - 1 ? count : 16);
}

// Vectors that M queries leave room for in registers, at least one.
template <class S, int M>
constexpr int kWidth = S::kAccumulators / M >= 4   ? 4
                       : S::kAccumulators / M >= 2 ? 2
                                                   : 1;

template <class S, KvFormat format, int M>
inline void weigh_values(const KvLayout& kv, const Groups<S, format>& groups, int first, int last,
                         const float* const* p, float* const* acc) {
  constexpr int B = kWidth<S, M>;
  const int d = kv.d_head;
  int i = 0;
  for (; i + 16 * B <= d; i += 16 * B) weigh_block<S, format, M, B>(kv, groups, first, last, p, acc, i, 16);
  for (; i < d; i += 16)
    weigh_block<S, format, M, 1>(kv, groups, first, last, p, acc, i, d - i < 16 ? d - i : 16);
}

template <class S, KvFormat format, int M>
void attend_chunk(const AttendChunk& a) {
  using F = typename S::F;
  const KvLayout& kv = *a.kv;
  const int base = a.chunk * kChunk;
  alignas(64) float scores[M][kChunk];

  int first = a.first[0], last = a.last[0];
  for (int m = 1; m < M; ++m) {
    first = a.first[m] < first ? a.first[m] : first;
    last = a.last[m] > last ? a.last[m] : last;
  }
  const int group0 = (first - base) / kKeyGroup, group1 = (last - base) / kKeyGroup;
  const Groups<S, format> groups(a, group0, group1);
  constexpr int G = kWidth<S, M>;
  int next = group0;
  for (; next + G <= group1 + 1; next += G)
    score_groups<S, format, M, G>(kv, groups.k + next, a.q, a.scale, scores, next * kKeyGroup);
  for (; next <= group1; ++next)
    score_groups<S, format, M, 1>(kv, groups.k + next, a.q, a.scale, scores, next * kKeyGroup);

  const float* weights[M];
  bool same = true;
  for (int m = 0; m < M; ++m) {
    float* s = scores[m];
    const int lo = a.first[m] - base, hi = a.last[m] - base;  // the keys this query sees, in the chunk
    const int g0 = lo / kKeyGroup, g1 = hi / kKeyGroup;
    if (a.cap != 0.0f) soft_cap<S>(s + g0 * kKeyGroup, a.cap, (g1 - g0 + 1) * kKeyGroup, s + g0 * kKeyGroup);
    for (int i = g0 * kKeyGroup; i < lo; ++i) s[i] = -__builtin_inff();
    for (int i = hi + 1; i < (g1 + 1) * kKeyGroup; ++i) s[i] = -__builtin_inff();
    F most = S::load(s + g0 * kKeyGroup);
    for (int g = g0 + 1; g <= g1; ++g) most = S::max(most, S::load(s + g * kKeyGroup));
    const float top = S::reduce_max(most);
    F sum = S::zero();
    for (int g = g0; g <= g1; ++g) {
      const F w = exp<S>(S::sub(S::load(s + g * kKeyGroup), S::set1(top)));
      S::store(s + g * kKeyGroup, w);
      sum = S::add(sum, w);
    }
    a.max[m] = top;
    a.sum[m] = S::reduce_add(sum);
    weights[m] = s;
    for (int i = 0; i < kv.d_head; ++i) a.acc[m][i] = 0.0f;
    same = same && a.first[m] == a.first[0] && a.last[m] == a.last[0];
  }
  if (same) {
    weigh_values<S, format, M>(kv, groups, a.first[0] - base, a.last[0] - base, weights, a.acc);
    return;
  }
  // The keys that all see go together; what only some see before and after them goes one query at a time.
  int from = a.first[0] - base, to = a.last[0] - base;
  for (int m = 1; m < M; ++m) {
    from = a.first[m] - base > from ? a.first[m] - base : from;
    to = a.last[m] - base < to ? a.last[m] - base : to;
  }
  for (int m = 0; m < M; ++m) {
    const int end = from <= to ? from - 1 : a.last[m] - base;
    weigh_values<S, format, 1>(kv, groups, a.first[m] - base, end, weights + m, a.acc + m);
  }
  if (from > to) return;
  weigh_values<S, format, M>(kv, groups, from, to, weights, a.acc);
  for (int m = 0; m < M; ++m) {
    weigh_values<S, format, 1>(kv, groups, to + 1, a.last[m] - base, weights + m, a.acc + m);
  }
}

// The instance for exactly a.queries queries.
template <class S, KvFormat format, int M>
inline void attend_tile(const AttendChunk& a) {
  if constexpr (M > 1) {
    if (a.queries < M) return attend_tile<S, format, M - 1>(a);
  }
  attend_chunk<S, format, M>(a);
}

// Takes S::kQueryTile queries at a time: as many as its registers hold.
template <class S, KvFormat format>
void attend(const AttendChunk& all) {
  for (int i = 0; i < all.queries; i += S::kQueryTile) {
    AttendChunk a = all;
    a.queries = all.queries - i < S::kQueryTile ? all.queries - i : S::kQueryTile;
    a.q += i;
    a.first += i;
    a.last += i;
    a.max += i;
    a.sum += i;
    a.acc += i;
    attend_tile<S, format, S::kQueryTile>(a);
  }
}

// Folds a chunk's partial into the running one: both are rescaled to the common maximum.
template <class S>
void merge_chunk(float* max, float* sum, float* acc, float part_max, float part_sum, const float* part,
                 int d) {
  using F = typename S::F;
  const float top = *max > part_max ? *max : part_max;
  const float keep = exp1<S>(*max - top), take = exp1<S>(part_max - top);
  *sum = __builtin_fmaf(*sum, keep, part_sum * take);
  *max = top;
  by_16(d, [&](int i, int count) {
    const F taken = S::mul(load_upto<S>(part + i, count), S::set1(take));
    store_upto<S>(acc + i, S::fma(load_upto<S>(acc + i, count), S::set1(keep), taken), count);
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
