// What each op of a plan does with the rows of a step.
// Law: a thread takes whole rows, or whole panels of weight rows; no output is shared between threads.

#include <algorithm>

#include "plan.h"

namespace pellucid {
namespace {

struct Range {
  int first, end;
};

// The thread's share of n things, contiguous.
Range share(int n, int thread, int threads) {
  const int64_t total = n;
  return {static_cast<int>(total * thread / threads), static_cast<int>(total * (thread + 1) / threads)};
}

Range rows_of(const Frame& f, bool selected, int thread) {
  return share(f.count(selected), thread, f.pool.threads());
}

// Bytes of activations that a pass over the panels keeps in the second-level cache.
constexpr int64_t kActivationBytes = 512 << 10;

}  // namespace

void EmbedOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, false, thread);
  const PackedMatrix& t = *table;
  for (int r = first; r < end; ++r) {
    float* row = f.floats(out, r);
    f.kernels.unpack_row[static_cast<int>(t.format())](t.data(), t.rows(), t.cols(), f.step.tokens[r], row);
    if (scale != 1.0f) f.rows.scale(row, scale, t.cols(), row);
  }
}

void NormOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, selected, thread);
  for (int r = first; r < end; ++r) {
    for (int g = 0; g < groups; ++g)
      f.rows.rms_norm(f.floats(x, r) + g * n, weight, eps, n, f.floats(out, r) + g * n);
    if (quant != kNone) f.kernels.quantize(f.floats(out, r), groups * n, f.bytes(quant, r));
  }
}

void MultiplyOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, selected, thread);
  for (int r = first; r < end; ++r) {
    for (int g = 0; g < groups; ++g)
      f.rows.multiply(f.floats(x, r) + g * n, weight, n, f.floats(out, r) + g * n);
  }
}

void QuantizeOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, selected, thread);
  for (int r = first; r < end; ++r) f.kernels.quantize(f.floats(x, r), n, f.bytes(out, r));
}

void LinearOp::run(const Frame& f, int thread) const {
  const int rows = f.count(selected);
  if (rows == 0) return;
  const int64_t widest = std::max(x == kNone ? 0 : f.stride(x), quant == kNone ? 0 : f.stride(quant));
  const int block = static_cast<int>(std::clamp<int64_t>(kActivationBytes / widest, 32, 1024));
  for (int row = 0; row < rows; row += block) {
    for (const LinearPart& part : parts) {
      const PackedMatrix& m = *part.matrix;
      const int input = m.quantized() ? quant : x;
      const auto [first, end] = share(m.panels(), thread, f.pool.threads());
      if (first == end) continue;
      LinearArgs a{};
      a.w = m.data();
      a.rows = m.rows();
      a.cols = m.cols();
      a.panel0 = first;
      a.panel1 = end;
      a.tokens = std::min(block, rows - row);
      a.x = f.bytes(input, row);
      a.x_stride = f.stride(input);
      a.out = f.floats(part.out, row);
      a.out_stride = f.stride(part.out) / 4;
      a.bias = part.bias;
      if (residual != kNone) {
        a.residual = f.floats(residual, row);
        a.residual_stride = f.stride(residual) / 4;
      }
      f.kernels.linear[static_cast<int>(m.format())](a);
    }
  }
}

void RopeOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, false, thread);
  for (int r = first; r < end; ++r) {
    const int64_t at = int64_t{f.step.positions[r]} * half;
    for (int h = 0; h < heads; ++h) {
      f.rows.rope(f.floats(x, r) + h * d_head, cos + at, sin + at, half, d_head,
                  f.floats(out, r) + h * d_head);
    }
  }
}

void StoreOp::run(const Frame& f, int thread) const {
  // One KV head of a sequence's rows lies in one thread, so that two threads never write one cache line of a
  // page.
  const int d = f.kv.d_head;
  for (int item = thread; item < f.step.seqs * f.kv.kv_heads; item += f.pool.threads()) {
    const int seq = item / f.kv.kv_heads, head = item % f.kv.kv_heads;
    const int32_t* table = f.step.page_tables + int64_t{seq} * f.step.table_width;
    for (int r = f.step.seq_starts[seq]; r < f.step.seq_starts[seq + 1]; ++r) {
      const int position = f.step.positions[r];
      const int page = table[position / f.kv.page_size];
      f.rows.store_kv(f.kv, f.kv.k(layer, page, head), f.kv.v(layer, page, head), position % f.kv.page_size,
                      f.floats(k, r) + head * d, f.floats(v, r) + head * d);
    }
  }
}

void GluOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, false, thread);
  for (int r = first; r < end; ++r) {
    f.rows.glu(kind, f.floats(gate, r), f.floats(up, r), n, f.floats(out, r));
    if (quant != kNone) f.kernels.quantize(f.floats(out, r), n, f.bytes(quant, r));
  }
}

void AddOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, false, thread);
  for (int r = first; r < end; ++r) f.rows.add(f.floats(a, r), f.floats(b, r), n, f.floats(out, r));
}

void SelectOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, true, thread);
  for (int r = first; r < end; ++r) {
    const float* from = f.floats(x, f.step.logit_rows[r]);
    std::copy(from, from + n, f.floats(out, r));
  }
}

}  // namespace pellucid
