// How attention is split into items and chunks of keys.
// Law: an item is a tile of query rows, a KV head and a set of its query heads. Each query's chunks are
// merged in ascending order; whether one thread walks them or many share them changes when, never what.

#include <algorithm>
#include <limits>

#include "plan.h"

namespace pellucid {
namespace {

// The queries of an item: which rows and heads, and the keys that each sees.
struct Queries {
  int n = 0, seq = 0, kv_head = 0;
  int row[kMaxQueries], head[kMaxQueries];
  int first[kMaxQueries], last[kMaxQueries];  // keys, both included
};

Queries gather(const Frame& f, int group, int window, int item) {
  const int sets = head_sets(group);
  const Tile& tile = f.tiles[static_cast<size_t>(item / (f.kv.kv_heads * sets))];
  Queries q;
  q.seq = tile.seq;
  q.kv_head = item / sets % f.kv.kv_heads;
  const int head0 = item % sets * kMaxQueries;
  for (int r = tile.row; r < tile.row + tile.rows; ++r) {
    for (int h = head0; h < std::min(group, head0 + kMaxQueries); ++h) {
      q.row[q.n] = r;
      q.head[q.n] = q.kv_head * group + h;
      q.last[q.n] = f.step.positions[r];
      q.first[q.n] = window ? std::max(0, q.last[q.n] - window + 1) : 0;
      ++q.n;
    }
  }
  return q;
}

// Partials of one chunk, for the queries that see any of its keys: max, sum and d values each.
struct Partials {
  int n = 0;
  int which[kMaxQueries];  // index into Queries
  float max[kMaxQueries], sum[kMaxQueries];
};

Partials attend_chunk(const Frame& f, const AttentionOp& op, const Queries& q, int chunk, float* acc) {
  Partials p;
  const int d = f.kv.d_head, low = chunk * kChunk, high = low + kChunk - 1;
  const float* query[kMaxQueries];
  float* sums[kMaxQueries];
  int first[kMaxQueries], last[kMaxQueries];
  for (int i = 0; i < q.n; ++i) {
    if (q.first[i] > high || q.last[i] < low) continue;
    p.which[p.n] = i;
    query[p.n] = f.floats(op.q, q.row[i]) + q.head[i] * d;
    first[p.n] = std::max(q.first[i], low);
    last[p.n] = std::min(q.last[i], high);
    sums[p.n] = acc + p.n * d;
    ++p.n;
  }
  if (p.n == 0) return p;
  AttendChunk a{};
  a.kv = &f.kv;
  a.page_table = f.step.page_tables + int64_t{q.seq} * f.step.table_width;
  a.layer = op.layer;
  a.kv_head = q.kv_head;
  a.chunk = chunk;
  a.queries = p.n;
  a.q = query;
  a.first = first;
  a.last = last;
  a.scale = op.scale;
  a.cap = op.cap;
  a.max = p.max;
  a.sum = p.sum;
  a.acc = sums;
  f.rows.attend[static_cast<int>(f.kv.format)](a);
  return p;
}

// The running result of an item's queries, chunk after chunk.
struct Running {
  float max[kMaxQueries], sum[kMaxQueries];
  float acc[kMaxQueries * kMaxHead];

  Running(int n, int d) {
    std::fill(max, max + n, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + n, 0.0f);
    std::fill(acc, acc + n * d, 0.0f);
  }
  void merge(const Frame& f, const Partials& p, const float* part) {
    const int d = f.kv.d_head;
    for (int i = 0; i < p.n; ++i) {
      const int w = p.which[i];
      f.rows.merge_chunk(max + w, sum + w, acc + w * d, p.max[i], p.sum[i], part + i * d, d);
    }
  }
  void finish(const Frame& f, const AttentionOp& op, const Queries& q) {
    const int d = f.kv.d_head;
    for (int i = 0; i < q.n; ++i) {
      f.rows.scale(acc + i * d, 1.0f / sum[i], d, f.floats(op.out, q.row[i]) + q.head[i] * d);
    }
  }
};

int first_chunk(const Queries& q) { return *std::min_element(q.first, q.first + q.n) / kChunk; }
int last_chunk(const Queries& q) { return *std::max_element(q.last, q.last + q.n) / kChunk; }

}  // namespace

void AttentionOp::run(const Frame& f, int thread) const {
  const int group = heads / f.kv.kv_heads, d = f.kv.d_head, threads = f.pool.threads();
  const int items = static_cast<int>(f.tiles.size()) * f.kv.kv_heads * head_sets(group);

  if (f.chunks == 1 || threads == 1 || items >= kSpreadBelow * threads) {
    // Later rows of a prompt see more keys: deal the items out in turn.
    float part[kMaxQueries * kMaxHead];
    for (int item = thread; item < items; item += threads) {
      const Queries asked = gather(f, group, window, item);
      Running running(asked.n, d);
      for (int chunk = first_chunk(asked); chunk <= last_chunk(asked); ++chunk) {
        const Partials p = attend_chunk(f, *this, asked, chunk, part);
        running.merge(f, p, part);
      }
      running.finish(f, *this, asked);
    }
    return;
  }

  // Few items, many keys: threads share the chunks of an item, then merge.
  const int64_t query_floats = d + 2;
  auto partials_of = [&](int item, int chunk) {
    return f.partials + (int64_t{item} * f.chunks + chunk) * kMaxQueries * query_floats;
  };
  for (int job = thread; job < items * f.chunks; job += threads) {
    const int item = job / f.chunks, chunk = job % f.chunks;
    const Queries asked = gather(f, group, window, item);
    float* at = partials_of(item, chunk);
    const Partials p = attend_chunk(f, *this, asked, chunk, at + 2 * kMaxQueries);
    std::copy(p.max, p.max + p.n, at);
    std::copy(p.sum, p.sum + p.n, at + kMaxQueries);
  }
  f.pool.barrier();
  for (int item = thread; item < items; item += threads) {
    const Queries asked = gather(f, group, window, item);
    Running running(asked.n, d);
    for (int chunk = first_chunk(asked); chunk <= last_chunk(asked); ++chunk) {
      const float* at = partials_of(item, chunk);
      Partials p;
      for (int i = 0; i < asked.n; ++i) {
        if (asked.first[i] > chunk * kChunk + kChunk - 1 || asked.last[i] < chunk * kChunk) continue;
        p.which[p.n] = i;
        p.max[p.n] = at[p.n];
        p.sum[p.n] = at[kMaxQueries + p.n];
        ++p.n;
      }
      running.merge(f, p, at + 2 * kMaxQueries);
    }
    running.finish(f, *this, asked);
  }
}

}  // namespace pellucid
