// Attention of a few query vectors over one chunk of 256 keys, and the merge of chunks. Included only by isa_*.cpp.
// Law: chunks begin at absolute multiples of 256 keys. A chunk's partial result (maximum, sum, weighted values) depends on
// the query, its own range of keys and the cache, never on the other queries beside it; partials merge in chunk order.
// So prefill, decode and any split of the chunks over threads give the same bits.
//
// Source of the online softmax: Milakov & Gimelshein 2018; of the tiling: Dao et al. 2022.
#pragma once

#include "ops.h"
#include "row_kernels.h"

namespace pellucid {
namespace {

// 16 keys of dimension i, or 16 values from offset i of a token, as floats.
template <class S, KvFormat format>
inline typename S::F load_codes(const uint8_t* p, int i) {
  if constexpr (format == KvFormat::f16) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(p) + i);
  } else {
    return S::load_i8(reinterpret_cast<const int8_t*>(p) + i);
  }
}

template <class S>
inline float first_half(uint16_t bits) {
  uint16_t lanes[16] = {bits};
  float out[16];
  S::store(out, S::load_f16(lanes));
  return out[0];
}

// Scores of M queries against one group of 16 keys: each a chain over the dimensions (q8_0: chains of 32, scaled and added).
template <class S, KvFormat format, int M>
inline void score_group(const KvLayout& kv, const uint8_t* group, const float* const* q, float scale, float* const* out) {
  using F = typename S::F;
  const int d = kv.d_head;
  F total[M];
  for (int m = 0; m < M; ++m) total[m] = S::zero();
  if constexpr (format == KvFormat::f16) {
    for (int i = 0; i < d; ++i) {
      const F key = load_codes<S, format>(group, i * kKeyGroup);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) total[m] = S::fma(S::set1(q[m][i]), key, total[m]);
    }
  } else {
    const auto* scales = reinterpret_cast<const uint16_t*>(group + int64_t{kKeyGroup} * d);
    for (int b = 0; b < d / 32; ++b) {
      F part[M];
      for (int m = 0; m < M; ++m) part[m] = S::zero();
      for (int i = 32 * b; i < 32 * b + 32; ++i) {
        const F key = load_codes<S, format>(group, i * kKeyGroup);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) part[m] = S::fma(S::set1(q[m][i]), key, part[m]);
      }
      const F key_scale = S::load_f16(scales + b * kKeyGroup);
      for (int m = 0; m < M; ++m) total[m] = S::fma(part[m], key_scale, total[m]);
    }
  }
  for (int m = 0; m < M; ++m) S::store(out[m], S::mul(total[m], S::set1(scale)));
}

// acc[m] += Σ p[m][key] · V[key] over `keys`, one chain a value, for M queries that see the same keys.
template <class S, KvFormat format, int M>
inline void weigh_values(const AttendChunk& a, int first, int last, const float* const* p, float* const* acc) {
  using F = typename S::F;
  const KvLayout& kv = *a.kv;
  const int d = kv.d_head, base = a.chunk * kChunk;
  for (int i = 0; i < d; i += 16) {
    const int count = d - i < 16 ? d - i : 16;
    F sum[M];
    for (int m = 0; m < M; ++m) sum[m] = load_upto<S>(acc[m] + i, count);
    for (int key = first; key <= last;) {
      const int page = key / kv.page_size, slot0 = key % kv.page_size;
      const uint8_t* v = kv.v(a.layer, a.page_table[page], a.kv_head);
      const auto* scales = reinterpret_cast<const uint16_t*>(v + int64_t{kv.page_size} * d);
      const int slots = last - key + slot0 + 1 < kv.page_size ? last - key + slot0 + 1 : kv.page_size;
      for (int slot = slot0; slot < slots; ++slot, ++key) {
        F value = load_codes<S, format>(v + int64_t{slot} * kv.v_stride(), i);
        if constexpr (format == KvFormat::q8_0) {
          value = S::mul(value, S::set1(first_half<S>(scales[slot * (d / 32) + i / 32])));
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) sum[m] = S::fma(S::set1(p[m][key - base]), value, sum[m]);
      }
    }
    for (int m = 0; m < M; ++m) store_upto<S>(acc[m] + i, sum[m], count);
  }
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
  for (int g = group0; g <= group1; ++g) {
    const int key = base + g * kKeyGroup;
    const uint8_t* keys = kv.k(a.layer, a.page_table[key / kv.page_size], a.kv_head) +
                          key % kv.page_size / kKeyGroup * kv.k_group_bytes();
    float* out[M];
    for (int m = 0; m < M; ++m) out[m] = scores[m] + g * kKeyGroup;
    score_group<S, format, M>(kv, keys, a.q, a.scale, out);
  }

  const float* weights[M];
  bool same = true;
  for (int m = 0; m < M; ++m) {
    float* s = scores[m];
    const int lo = a.first[m] - base, hi = a.last[m] - base;  // the keys this query sees, in the chunk
    const int g0 = lo / kKeyGroup, g1 = hi / kKeyGroup;
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
    weigh_values<S, format, M>(a, a.first[0], a.last[0], weights, a.acc);
  } else {
    for (int m = 0; m < M; ++m) weigh_values<S, format, 1>(a, a.first[m], a.last[m], weights + m, a.acc + m);
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
void merge_chunk(float* max, float* sum, float* acc, float part_max, float part_sum, const float* part, int d) {
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
          &multiply<S>,
          &add<S>,
          &scale<S>,
          &glu<S>,
          &rope<S>,
          &store_kv<S>,
          {&attend<S, KvFormat::f16>, &attend<S, KvFormat::q8_0>},
          &merge_chunk<S>};
}

}  // namespace
}  // namespace pellucid
