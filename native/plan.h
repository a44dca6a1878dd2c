// A plan: the ops of a model, lowered once, walked by a pool of threads in one call a step.
// Law: the list is fixed when the plan is built; a step brings rows, never choices. Between two ops all
// threads meet. How work is split over threads changes no bit, since every output is computed whole by one
// thread in a stated order; where every thread computes the same rows for itself, each has a copy of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kernels.h"
#include "kv.h"
#include "matrix.h"
#include "memory.h"
#include "pool.h"

namespace pellucid {

// Where a value lies: rows of `stride` bytes from `offset` (bytes a row) in the arena.
struct Slot {
  int64_t offset = 0;
  int64_t stride = 0;
};
constexpr int kResult = -1;  // the slot that is the caller's own buffer of logits
constexpr int kNone = -2;    // no value

struct Range {
  int first, end;
};

// The thread's share of n things, contiguous.
inline Range share(int n, int thread, int threads) {
  const int64_t total = n;
  return {static_cast<int>(total * thread / threads), static_cast<int>(total * (thread + 1) / threads)};
}

// The rows of one step.
struct Step {
  int rows = 0, seqs = 0, table_width = 0, wanted = 0;
  const int32_t *tokens = nullptr, *positions = nullptr;  // (rows)
  const int32_t* seq_starts = nullptr;                    // (seqs + 1)
  const int32_t* page_tables = nullptr;                   // (seqs, table_width)
  const int32_t* logit_rows = nullptr;                    // (wanted)
  float* logits = nullptr;                                // (wanted, vocab)
  int watched = 0;
  const int32_t* watched_rows = nullptr;  // (watched) rows that taps look at
  float* tapped = nullptr;                // (watched, the plan's tap_width)
};

// Rows of one sequence: those that attend together, so that they read each key once, or those whose keys lie
// together in the cache.
struct Tile {
  int seq, row, rows;
};

struct Frame;

struct EmbedOp {
  int out;
  const PackedMatrix* table;
  float scale;
  bool positions;  // rows of the table are looked up by position, not by token
  void run(const Frame& f, int thread) const;
};

// What is computed row by row, whole rows at a time, so that steps can follow each other without a meeting.
struct RowStep {
  enum class Kind : int {
    rms_norm,
    layer_norm,
    multiply,
    shift,
    scale,
    soft_cap,
    add,
    activate,
    glu,
    gate,
    route,
    mix,
    quantize,
    select
  };
  static constexpr const char* kNames[] = {"rms_norm", "layer_norm", "multiply", "shift", "scale",
                                           "soft_cap", "add",        "activate", "glu",   "gate",
                                           "route",    "mix",        "quantize", "select"};
  Kind kind;
  int out, x, y;  // y: the second operand of add, glu, gate and mix; the chosen experts that route makes
  int groups, n;  // a row is groups of n values; of route: chosen experts, and all of them
  const float* weight;  // of shift: what is added; or null
  float number;         // epsilon, factor or cap; of route: whether weights are normalized
  Activation activation;
  int quant;                            // where the output goes quantised as well, or kNone
  bool x_here = false, y_here = false;  // made by an earlier step of the same op

  // Row r; what the op itself makes lies `shift` rows further on.
  void run(const Frame& f, int r, int shift) const;
};
struct RowsOp {
  std::vector<RowStep> steps;
  bool selected;
  void run(const Frame& f, int thread) const;
};

// Does the steps of an op: with few rows every thread for itself, its copies of what they make in rows of the
// same slots that the step leaves free, else each for its share of the rows, and they meet. Returns how far
// from their rows this thread's copies lie.
int prepare(const Frame& f, const std::vector<RowStep>& steps, int thread, int rows);

struct LinearPart {
  int out;
  const PackedMatrix* matrix;
  const float* bias;  // or null
};

// The steps, then the products of what they leave. What several threads made is read by others in the first
// one's copy.
struct LinearOp {
  std::vector<RowStep> steps;
  int x, quant;  // floats, and the same quantised where a part's format asks for it
  std::vector<LinearPart> parts;
  int residual;
  bool gated;  // two parts: the first one's place gets activation(first) * second
  Activation activation;
  int out_quant;  // where that goes quantised, or kNone
  bool selected;
  bool x_here = false, quant_here = false, residual_here = false;  // made by a step
  void run(const Frame& f, int thread) const;

  // What a thread does at once: rows [row, row + rows), its own copies `shift` rows further on, and panels.
  struct Share {
    int shift, row, rows, panel0, panel1, thread;
    bool packed;  // see LinearArgs
  };
  void multiply(const Frame& f, const LinearPart& part, const Share& s) const;
};
// The products of each row with the experts chosen for it; the part's rows hold them one behind the other.
struct ExpertLinearOp {
  std::vector<RowStep> steps;
  int x, quant, chosen;
  LinearPart part;
  int top;        // chosen experts a row
  bool shared_x;  // all of a row's experts read the same x, else each its own
  bool x_here = false, quant_here = false, chosen_here = false;
  void run(const Frame& f, int thread) const;
};
// The whole of a mixture: out = sum over a row's experts of weight * (down · glu(gate · x, up · x)). Between
// are rows for each pair of a row and an expert, sorted by experts.
struct ExpertsOp {
  std::vector<RowStep> steps;
  int x, quant, chosen, weights;
  LinearPart gate, up, down;
  Activation activation;
  int top;
  int x_sorted, quant_sorted;  // the rows that experts read, where there are several; or kNone
  int post_quant;              // glu's result, quantised, or kNone
  int out;
  bool x_here = false, quant_here = false, chosen_here = false, weights_here = false;
  void run(const Frame& f, int thread) const;
};
struct RopeOp {
  int out, x, heads, d_head, half;
  const float *cos, *sin;  // (context, half)
  void run(const Frame& f, int thread) const;
};
struct StoreOp {
  int k, v, layer;
  void run(const Frame& f, int thread) const;
};
// Heads that are rotated, after a norm where there is a weight.
struct Turn {
  int out, x, normed;
  const float* weight;  // or null
  float eps;
  int heads, half;
  const float *cos, *sin;  // (context, half)
  void run(const Frame& f, int r, int head) const;
};
struct RopeStoreOp {
  Turn q, k;
  int v, layer;
  void run(const Frame& f, int thread) const;
};
struct AttentionOp {
  int out, q, layer, heads;
  float scale, cap;
  int window;
  const float* sinks;  // one a head, or null
  void run(const Frame& f, int thread) const;
};
// What somebody wants to see of a value, in the rows that are watched; see tap.cpp.
struct TapOp {
  enum class Kind : int { row, sample, stats, topk };
  static constexpr const char* kNames[] = {"row", "sample", "stats", "topk"};
  int x, n;  // a row of the value has n numbers
  Kind kind;
  int count;  // of sample and topk: how many
  bool selected;
  int64_t at = 0;  // where its numbers begin among those of a watched row

  int64_t width() const;
  void run(const Frame& f, int thread) const;
};
// out = x, which whoever runs the plan piece by piece may change before the next op reads it.
struct PatchOp {
  int out, x, n;
  bool selected;
  void run(const Frame& f, int thread) const;
};
using PlanOp = std::variant<EmbedOp, RowsOp, LinearOp, ExpertLinearOp, ExpertsOp, RopeOp, StoreOp,
                            RopeStoreOp, AttentionOp, TapOp, PatchOp>;

class Plan {
 public:
  // `heads` query heads in every layer. Throws std::invalid_argument where the numbers cannot be used.
  Plan(Pool& pool, const Kernels& table, const KvLayout& kv, int heads, int vocab, int context, int max_rows,
       int64_t arena_row_bytes);

  int slot(int64_t offset, int64_t row_bytes);       // a new slot; its number
  const float* constant(std::vector<float> values);  // kept as long as the plan
  void push(PlanOp op);

  // One step. Throws std::invalid_argument, with what is wrong, before anything is written.
  void run(const Step& step) { run(step, 0, ops()); }

  // The ops [first, end) of it; those before must have run.
  void run(const Step& step, int first, int end);

  // The same step, with what it took: times (threads, ops, 2) in nanoseconds, of the op and of the waits for
  // the others in it and after it.
  void profile(const Step& step, int64_t* times);

  int ops() const { return static_cast<int>(ops_.size()); }
  int threads() const { return pool_.threads(); }
  int vocab() const { return vocab_; }
  int max_rows() const { return max_rows_; }
  int64_t tap_width() const { return tap_width_; }  // numbers that the taps give of a watched row

  // Row r of a slot in the arena, as the last run left it.
  float* value(int slot, int r) {
    const Slot& s = slots_.at(static_cast<size_t>(slot));
    return reinterpret_cast<float*>(arena_.data() + s.offset * max_rows_ + s.stride * r);
  }
  int64_t stride(int slot) const { return slots_.at(static_cast<size_t>(slot)).stride; }
  int64_t scratch_bytes() const {
    return static_cast<int64_t>(arena_.size() + products_.size() + partials_.size() + attention_.size() +
                                sorting_.size());
  }

 private:
  friend struct Frame;
  void check(const Step& step) const;

  Pool& pool_;
  const Kernels& kernels_;
  KvLayout kv_;
  int heads_, vocab_, context_, max_rows_;
  AlignedBuffer arena_;
  AlignedBuffer products_;   // of products with many rows, kLinearScratch a thread
  AlignedBuffer partials_;   // of attention whose chunks are spread over threads
  AlignedBuffer attention_;  // what each thread needs for attention
  AlignedBuffer sorting_;    // of rows by experts; see experts.cpp
  int64_t sorting_stride_ = 0, tap_width_ = 0;
  std::vector<Slot> slots_;
  std::vector<PlanOp> ops_;
  std::vector<std::unique_ptr<std::vector<float>>> constants_;
};

// A plan at one step: what an op sees.
struct Frame {
  const Kernels& kernels;
  const RowKernels& rows;
  const KvLayout& kv;
  Pool& pool;
  const Step& step;
  std::vector<Tile> tiles, groups;  // to attend, those that see most keys first; of one group of keys each
  // See attend.cpp: for all threads together, and `thread_floats` for each.
  float *partials, *attention_scratch;
  int64_t partial_floats, thread_floats;
  int32_t* sorting;  // a thread's own part of it is sorting_stride numbers
  int64_t sorting_stride;
  const std::vector<Slot>& slots;
  uint8_t* arena;
  uint8_t* product_scratch;  // kLinearScratch for each thread
  int max_rows, vocab;
  int64_t tap_width;
  int64_t* waits = nullptr;  // nanoseconds at meetings inside an op, kWaitStride apart; null: nobody asks

  Frame(Plan& plan, const Step& step);

  // Inside an op: returns when every thread has come here.
  void meet(int thread) const;

  int count(bool selected) const { return selected ? step.wanted : step.rows; }
  int64_t stride(int slot) const {
    return slot == kResult ? int64_t{4} * vocab : slots[static_cast<size_t>(slot)].stride;
  }
  uint8_t* bytes(int slot, int row) const {
    if (slot == kResult) return reinterpret_cast<uint8_t*>(step.logits + int64_t{row} * vocab);
    const Slot& s = slots[static_cast<size_t>(slot)];
    return arena + s.offset * max_rows + s.stride * row;
  }
  float* floats(int slot, int row) const { return reinterpret_cast<float*>(bytes(slot, row)); }
};

// out = the sum of weights[j] * x(j), n values each, in the order of j.
template <class X>
void mix(const Frame& f, const float* weights, int count, int n, float* out, X&& x) {
  f.rows.scale(x(0), weights[0], n, out);
  for (int j = 1; j < count; ++j) f.kernels.experts.add_scaled(x(j), weights[j], n, out);
}

// Rows whose packed activations pass over all panels of a product.
constexpr int kRowBlock = 192;

constexpr int kWaitStride = 8;
constexpr int kSpreadBelow =
    4;  // attention spreads chunks over threads when items are fewer than this a thread
constexpr int kLeastQueries = 32;  // of an item, where a sequence has as many

// Floats for the results of an item's queries: maximum, sum and d values each.
constexpr int64_t sums_floats(int d_head) { return int64_t{kMaxQueries} * (d_head + 2); }

}  // namespace pellucid
