#include "plan.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace pellucid {
namespace {

// Queries of an item that may spread its chunks over threads.
constexpr int kSpreadQueries = 16;

// What a thread needs for attention, a whole number of lines of the cache.
constexpr int64_t floats_of_thread(int d_head) {
  return (2 * sums_floats(d_head) + attend_scratch(d_head) + 15) / 16 * 16;
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Plan::Plan(Pool& pool, const Kernels& table, const KvLayout& kv, int heads, int vocab, int context,
           int max_rows, int64_t arena_row_bytes)
    : pool_(pool),
      kernels_(table),
      kv_(kv),
      heads_(heads),
      vocab_(vocab),
      context_(context),
      max_rows_(max_rows) {
  if (kv.kv_heads < 1 || heads < 1 || heads % kv.kv_heads)
    refuse("plan: heads must be a multiple of kv_heads");
  if (kv.d_head > kMaxHead)
    refuse("plan: heads of more than " + std::to_string(kMaxHead) + " values are not supported");
  if (vocab < 1 || context < 1 || max_rows < 1 || arena_row_bytes < 0) refuse("plan: sizes must be positive");
  arena_ = AlignedBuffer(static_cast<size_t>(arena_row_bytes) * static_cast<size_t>(max_rows));
  products_ = AlignedBuffer(static_cast<size_t>(kLinearScratch * pool.threads()));
  const int64_t items = int64_t{kSpreadBelow} * pool.threads();
  const int64_t chunks = (context + kChunk - 1) / kChunk;
  partials_ =
      AlignedBuffer(static_cast<size_t>(items * chunks * kSpreadQueries * (kv.d_head + 2)) * sizeof(float));
  attention_ =
      AlignedBuffer(static_cast<size_t>(pool.threads() * floats_of_thread(kv.d_head)) * sizeof(float));
}

int Plan::slot(int64_t offset, int64_t row_bytes) {
  slots_.push_back({offset, row_bytes});
  return static_cast<int>(slots_.size()) - 1;
}

const float* Plan::constant(std::vector<float> values) {
  constants_.push_back(std::make_unique<std::vector<float>>(std::move(values)));
  return constants_.back()->data();
}

namespace {

bool has(const std::vector<int>& slots, int slot) {
  return std::find(slots.begin(), slots.end(), slot) != slots.end();
}

// Marks what the steps read of each other's; returns the slots that they make.
std::vector<int> link(std::vector<RowStep>& steps) {
  std::vector<int> made;
  for (RowStep& step : steps) {
    step.x_here = has(made, step.x);
    step.y_here = has(made, step.y);
    made.push_back(step.out);
    if (step.kind == RowStep::Kind::route) made.push_back(step.y);
    if (step.quant != kNone) made.push_back(step.quant);
  }
  return made;
}

}  // namespace

void Plan::push(PlanOp op) {
  if (auto* rows = std::get_if<RowsOp>(&op)) link(rows->steps);
  if (auto* linear = std::get_if<LinearOp>(&op)) {
    const std::vector<int> made = link(linear->steps);
    linear->x_here = has(made, linear->x);
    linear->quant_here = has(made, linear->quant);
    linear->residual_here = has(made, linear->residual);
  }
  if (auto* linear = std::get_if<ExpertLinearOp>(&op)) {
    const std::vector<int> made = link(linear->steps);
    linear->x_here = has(made, linear->x);
    linear->quant_here = has(made, linear->quant);
    linear->chosen_here = has(made, linear->chosen);
  }
  if (auto* experts = std::get_if<ExpertsOp>(&op)) {
    const std::vector<int> made = link(experts->steps);
    experts->x_here = has(made, experts->x);
    experts->quant_here = has(made, experts->quant);
    experts->chosen_here = has(made, experts->chosen);
    experts->weights_here = has(made, experts->weights);
    const int64_t numbers = experts->gate.matrix->count() + 2 + int64_t{2} * max_rows_ * experts->top;
    if (numbers > sorting_stride_) {
      sorting_stride_ = (numbers + 15) / 16 * 16;
      sorting_ = AlignedBuffer(static_cast<size_t>(threads() * sorting_stride_) * sizeof(int32_t));
    }
  }
  if (auto* tap = std::get_if<TapOp>(&op)) {
    tap->at = tap_width_;
    tap_width_ += tap->width();
  }
  ops_.push_back(std::move(op));
}

void Plan::check(const Step& s) const {
  if (s.rows < 1 || s.rows > max_rows_)
    refuse("step: " + std::to_string(s.rows) + " rows; a plan takes 1 to " + std::to_string(max_rows_));
  if (s.seqs < 1 || s.seq_starts[0] != 0 || s.seq_starts[s.seqs] != s.rows)
    refuse("step: seq_starts do not cover the rows");
  for (int i = 0; i < s.rows; ++i) {
    if (s.tokens[i] < 0 || s.tokens[i] >= vocab_)
      refuse("step: token " + std::to_string(s.tokens[i]) + " is not in the vocabulary");
  }
  for (int q = 0; q < s.seqs; ++q) {
    const int first = s.seq_starts[q], end = s.seq_starts[q + 1];
    if (end <= first) refuse("step: sequence " + std::to_string(q) + " has no rows");
    const int start = s.positions[first], last = s.positions[end - 1];
    for (int i = first; i < end; ++i) {
      if (s.positions[i] != start + (i - first))
        refuse("step: positions of a sequence must ascend without gaps");
    }
    if (start < 0 || last >= context_)
      refuse("step: position " + std::to_string(last) + " is outside the context");
    if (last / kv_.page_size >= s.table_width) refuse("step: a page table is too short");
    for (int p = 0; p <= last / kv_.page_size; ++p) {
      const int page = s.page_tables[int64_t{q} * s.table_width + p];
      if (page < 0 || page >= kv_.pages) refuse("step: page " + std::to_string(page) + " does not exist");
    }
  }
  for (int i = 0; i < s.wanted; ++i) {
    if (s.logit_rows[i] < 0 || s.logit_rows[i] >= s.rows) refuse("step: logit row out of range");
  }
  for (int i = 0; i < s.watched; ++i) {
    if (s.watched_rows[i] < 0 || s.watched_rows[i] >= s.rows) refuse("step: watched row out of range");
  }
}

void Plan::run(const Step& step, int first, int end) {
  if (first < 0 || end > ops() || first > end) refuse("step: there are no such ops");
  check(step);
  const Frame frame(*this, step);
  pool_.run([&](int thread) {
    for (int i = first; i < end; ++i) {
      std::visit([&](const auto& o) { o.run(frame, thread); }, ops_[static_cast<size_t>(i)]);
      pool_.barrier();
    }
  });
}

void Plan::profile(const Step& step, int64_t* times) {
  check(step);
  Frame frame(*this, step);
  std::vector<int64_t> waits(static_cast<size_t>(threads() * kWaitStride));
  frame.waits = waits.data();
  pool_.run([&](int thread) {
    int64_t* out = times + int64_t{2} * ops() * thread;
    int64_t& waited = waits[static_cast<size_t>(thread * kWaitStride)];
    int64_t began = now();
    for (const PlanOp& op : ops_) {
      waited = 0;
      std::visit([&](const auto& o) { o.run(frame, thread); }, op);
      const int64_t done = now();
      pool_.barrier();
      const int64_t all_done = now();
      *out++ = done - began - waited;
      *out++ = all_done - done + waited;
      began = all_done;
    }
  });
}

void Frame::meet(int thread) const {
  if (!waits) {
    pool.barrier();
    return;
  }
  const int64_t began = now();
  pool.barrier();
  waits[thread * kWaitStride] += now() - began;
}

Frame::Frame(Plan& plan, const Step& s)
    : kernels(plan.kernels_),
      rows(plan.kernels_.rows),
      kv(plan.kv_),
      pool(plan.pool_),
      step(s),
      partials(reinterpret_cast<float*>(plan.partials_.data())),
      attention_scratch(reinterpret_cast<float*>(plan.attention_.data())),
      partial_floats(static_cast<int64_t>(plan.partials_.size() / sizeof(float))),
      thread_floats(floats_of_thread(plan.kv_.d_head)),
      sorting(reinterpret_cast<int32_t*>(plan.sorting_.data())),
      sorting_stride(plan.sorting_stride_),
      slots(plan.slots_),
      arena(plan.arena_.data()),
      product_scratch(plan.products_.data()),
      max_rows(plan.max_rows_),
      vocab(plan.vocab_),
      tap_width(plan.tap_width_) {
  // As many queries as an item may have, less where that leaves some threads without work.
  const int items = kSpreadBelow * plan.threads(), queries = s.rows * plan.heads_ / items;
  const int most =
      std::max(1, std::clamp(queries, kLeastQueries, kMaxQueries) / (plan.heads_ / plan.kv_.kv_heads));
  for (int q = 0; q < s.seqs; ++q) {
    for (int row = s.seq_starts[q]; row < s.seq_starts[q + 1]; row += most) {
      tiles.push_back({q, row, std::min(most, s.seq_starts[q + 1] - row)});
    }
    for (int row = s.seq_starts[q]; row < s.seq_starts[q + 1];) {
      const int fit = std::min(kKeyGroup - s.positions[row] % kKeyGroup, s.seq_starts[q + 1] - row);
      groups.push_back({q, row, fit});
      row += fit;
    }
  }
  std::sort(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) {
    const int keys_a = s.positions[a.row], keys_b = s.positions[b.row];
    return keys_a != keys_b ? keys_a > keys_b : a.row < b.row;
  });
}

}  // namespace pellucid
