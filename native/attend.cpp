// How attention is split into items and chunks of keys.
// Law: an item is a tile of query rows, a KV head and a set of its query heads. Each query's chunks are
// merged in ascending order; whether one thread walks them or many share them changes when, never what.

#include <algorithm>
#include <limits>

#include "plan.h"

namespace pellucid {
namespace {

// The queries of an item, row after row: what each asks, where its answer goes, and the keys that it sees.
// The first and the last of these ascend, so that the queries that see a chunk follow each other.
struct Item {
  int n = 0, seq = 0, kv_head = 0;
  int chunk0 = 0, chunk1 = 0;  // chunks that any query sees, the second not included
  const float* q[kMaxQueries];
  float* out[kMaxQueries];
  int head[kMaxQueries];
  int first[kMaxQueries], last[kMaxQueries];  // both included
};

// Results of an item's queries: of one chunk, or of those so far.
struct Sums {
  float *max, *sum, *acc;

  Sums(float* at, int queries) : max(at), sum(at + queries), acc(at + 2 * queries) {}
};

class Attention {
 public:
  Attention(const Frame& frame, const AttentionOp& op_, int thread_)
      : f(frame),
        op(op_),
        thread(thread_),
        threads(frame.pool.threads()),
        group(op_.heads / frame.kv.kv_heads),
        sets((group + kMaxQueries - 1) / kMaxQueries),
        items(static_cast<int>(frame.tiles.size()) * frame.kv.kv_heads * sets),
        scratch(frame.attention_scratch + frame.thread_floats * thread_) {}

  void run() {
    int chunks = 0, queries = 0;
    for (const Tile& tile : f.tiles) {
      const auto [chunk0, chunk1] = seen(tile);
      chunks = std::max(chunks, chunk1 - chunk0);
      queries = std::max(queries, tile.rows * std::min(group, kMaxQueries));
    }
    const int64_t floats = int64_t{items} * chunks * queries * (f.kv.d_head + 2);
    if (chunks > 1 && threads > 1 && items < kSpreadBelow * threads && floats <= f.partial_floats) {
      spread(chunks, queries);
    } else {
      deal();
    }
  }

 private:
  // Items are dealt out in turn and back again, those with most keys first.
  void deal() {
    Item item;
    const Sums partial(scratch, kMaxQueries);
    const Sums running(partial.acc + kMaxQueries * f.kv.d_head, kMaxQueries);
    for (int round = 0, i = thread; i < items;) {
      gather(i, item);
      ++round;
      const int next = round * threads + (round % 2 ? threads - 1 - thread : thread);
      begin(running, item);
      for (int chunk = item.chunk0; chunk < item.chunk1; ++chunk) {
        const auto [from, to] = attend(
            item, chunk, chunk + 1 < item.chunk1 ? upcoming(i, chunk + 1) : upcoming(next, -1), partial);
        merge(running, partial, from, to);
      }
      finish(item, running, 0, item.n);
      i = next;
    }
  }

  // Few items, many keys: threads share the chunks of all items, then the queries.
  void spread(int chunks, int queries) {
    const int d = f.kv.d_head;
    const int64_t floats = int64_t{queries} * (d + 2);
    const auto partial = [&](int i, int chunk) {
      return Sums(f.partials + (int64_t{i} * chunks + chunk) * floats, queries);
    };
    int jobs = 0;
    for (const Tile& tile : f.tiles) {
      const auto [chunk0, chunk1] = seen(tile);
      jobs += (chunk1 - chunk0) * f.kv.kv_heads * sets;
    }
    const auto [begin_job, end_job] = share(jobs, thread, threads);
    Item item;
    for (int i = 0, job = 0; i < items && job < end_job; ++i) {
      const auto [chunk0, chunk1] = seen(tile_of(i));
      const int from = std::max(begin_job - job, 0), to = std::min(end_job - job, chunk1 - chunk0);
      job += chunk1 - chunk0;
      if (from >= to) continue;
      gather(i, item);
      for (int c = from; c < to; ++c) {
        const bool more = c + 1 < to, other = !more && job < end_job;
        attend(item, chunk0 + c, more ? upcoming(i, chunk0 + c + 1) : upcoming(other ? i + 1 : items, -1),
               partial(i, c));
      }
    }
    f.meet(thread);
    const auto [begin_query, end_query] = share(items * queries, thread, threads);
    for (int i = begin_query / queries; i * queries < end_query; ++i) {
      gather(i, item);
      const int q0 = std::max(begin_query - i * queries, 0), q1 = std::min(end_query - i * queries, item.n);
      if (q0 >= q1) continue;
      const Sums running(scratch, kMaxQueries);
      begin(running, item);
      for (int chunk = item.chunk0; chunk < item.chunk1; ++chunk) {
        const auto [from, to] = seeing(item, chunk);
        merge(running, partial(i, chunk - item.chunk0), std::max(from, q0), std::min(to, q1));
      }
      finish(item, running, q0, q1);
    }
  }

  const Tile& tile_of(int i) const { return f.tiles[static_cast<size_t>(i / (f.kv.kv_heads * sets))]; }

  // Chunks that the rows of a tile see.
  Range seen(const Tile& tile) const {
    const int first = f.step.positions[tile.row], last = first + tile.rows - 1;
    return {(op.window ? std::max(0, first - op.window + 1) : 0) / kChunk, last / kChunk + 1};
  }

  void gather(int i, Item& item) const {
    const Tile& tile = tile_of(i);
    const auto [chunk0, chunk1] = seen(tile);
    item.n = 0;
    item.seq = tile.seq;
    item.kv_head = i / sets % f.kv.kv_heads;
    item.chunk0 = chunk0;
    item.chunk1 = chunk1;
    const int head0 = i % sets * kMaxQueries, heads = std::min(group - head0, kMaxQueries);
    const int at = (item.kv_head * group + head0) * f.kv.d_head;
    for (int r = tile.row; r < tile.row + tile.rows; ++r) {
      const int last = f.step.positions[r], first = op.window ? std::max(0, last - op.window + 1) : 0;
      for (int h = 0; h < heads; ++h, ++item.n) {
        item.q[item.n] = f.floats(op.q, r) + at + h * f.kv.d_head;
        item.out[item.n] = f.floats(op.out, r) + at + h * f.kv.d_head;
        item.head[item.n] = item.kv_head * group + head0 + h;
        item.first[item.n] = first;
        item.last[item.n] = last;
      }
    }
  }

  // The keys of a chunk of an item; of its first one where `chunk` is negative; none where there is no such
  // item.
  NextKeys upcoming(int i, int chunk) const {
    NextKeys next;
    if (i >= items) return next;
    const Tile& tile = tile_of(i);
    next.page_table = table_of(tile.seq);
    next.kv_head = i / sets % f.kv.kv_heads;
    const int position = f.step.positions[tile.row];
    next.first = op.window ? std::max(0, position - op.window + 1) : 0;
    if (chunk >= 0) next.first = std::max(next.first, chunk * kChunk);
    next.last = position + tile.rows - 1;
    return next;
  }

  const int32_t* table_of(int seq) const { return f.step.page_tables + int64_t{seq} * f.step.table_width; }

  // The queries that see any key of a chunk.
  static Range seeing(const Item& item, int chunk) {
    const int low = chunk * kChunk, high = low + kChunk - 1;
    int from = 0, to = item.n;
    while (from < to && item.last[from] < low) ++from;
    while (from < to && item.first[to - 1] > high) --to;
    return {from, to};
  }

  Range attend(const Item& item, int chunk, const NextKeys& next, const Sums& to) const {
    const Range range = seeing(item, chunk);
    if (range.first == range.end) return range;
    AttendChunk a{};
    a.kv = &f.kv;
    a.page_table = table_of(item.seq);
    a.layer = op.layer;
    a.kv_head = item.kv_head;
    a.chunk = chunk;
    a.queries = range.end - range.first;
    a.q = item.q + range.first;
    a.first = item.first + range.first;
    a.last = item.last + range.first;
    a.scale = op.scale;
    a.cap = op.cap;
    a.max = to.max + range.first;
    a.sum = to.sum + range.first;
    a.acc = to.acc + range.first * f.kv.d_head;
    a.scratch = scratch + 2 * sums_floats(f.kv.d_head);
    a.next = next;
    f.rows.attend[static_cast<int>(f.kv.format)](a);
    return range;
  }

  // With a sink a query begins as if it had seen a key whose score is the sink and whose value is 0; maxima
  // are kept times log2(e).
  void begin(const Sums& running, const Item& item) const {
    for (int i = 0; i < item.n; ++i) {
      running.max[i] = op.sinks ? op.sinks[item.head[i]] * kLog2E : -std::numeric_limits<float>::infinity();
      running.sum[i] = op.sinks ? 1.0f : 0.0f;
    }
    std::fill(running.acc, running.acc + item.n * f.kv.d_head, 0.0f);
  }
  void merge(const Sums& to, const Sums& part, int from, int end) const {
    if (from >= end) return;
    const int d = f.kv.d_head;
    f.rows.merge_chunk(end - from, d, to.max + from, to.sum + from, to.acc + from * d, part.max + from,
                       part.sum + from, part.acc + from * d);
  }
  void finish(const Item& item, const Sums& sums, int from, int end) const {
    const int d = f.kv.d_head;
    for (int i = from; i < end; ++i) f.rows.scale(sums.acc + i * d, 1.0f / sums.sum[i], d, item.out[i]);
  }

  const Frame& f;
  const AttentionOp& op;
  const int thread, threads, group, sets, items;
  float* const scratch;  // of the thread: results of one chunk, the running ones, a chunk of keys and values
};

}  // namespace

void AttentionOp::run(const Frame& f, int thread) const { Attention(f, *this, thread).run(); }

}  // namespace pellucid
