// Where K and V of the paged cache lie.
// Law: a page belongs to one place in memory for every layer; a token's bytes in it depend on the token's
// values alone.
//
// A page of one KV head holds its K, then its V. K lies transposed in groups of 16 tokens, so that a score
// needs no sum across lanes; V lies token by token, so that the weighted sum runs along it.
//   f16:  K group: half[d][16].                                V: half[token][d16], d16 = d rounded up to 16.
//   q8_0: K group: int8[d][16], then half scale[d/32][16].     V: int8[token][d] for the page, then half
//   scale[token][d/32].
#pragma once

#include <cstdint>

#include "simd/base.h"

namespace pellucid {

enum class KvFormat : int { f16, q8_0, count };

constexpr int kKeyGroup = 16;  // tokens of a group of K

struct KvLayout {
  KvFormat format = KvFormat::f16;
  int layers = 0, pages = 0, page_size = 0, kv_heads = 0, d_head = 0;
  uint8_t* base = nullptr;

  PELLUCID_INLINE int v_stride() const {
    return format == KvFormat::f16 ? 2 * ((d_head + 15) / 16 * 16) : d_head;
  }  // bytes of a token's V codes
  PELLUCID_INLINE int64_t k_group_bytes() const {
    return format == KvFormat::f16 ? int64_t{2} * kKeyGroup * d_head
                                   : int64_t{kKeyGroup} * (d_head + d_head / 32 * 2);
  }
  PELLUCID_INLINE int64_t k_bytes() const { return page_size / kKeyGroup * k_group_bytes(); }
  PELLUCID_INLINE int64_t v_bytes() const {
    return int64_t{page_size} * (v_stride() + (format == KvFormat::q8_0 ? d_head / 32 * 2 : 0));
  }
  PELLUCID_INLINE int64_t head_bytes() const { return k_bytes() + v_bytes(); }
  PELLUCID_INLINE int64_t page_bytes() const { return kv_heads * head_bytes(); }  // of one layer
  PELLUCID_INLINE int64_t layer_bytes() const { return pages * page_bytes(); }

  PELLUCID_INLINE uint8_t* k(int layer, int page, int head) const {
    return base + layer * layer_bytes() + page * page_bytes() + head * head_bytes();
  }
  PELLUCID_INLINE uint8_t* v(int layer, int page, int head) const { return k(layer, page, head) + k_bytes(); }
};

}  // namespace pellucid
