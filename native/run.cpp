// What each op of a plan does with the rows of a step.
// Law: a thread takes whole rows, whole heads of a row, or whole panels of weight rows; no output is shared
// between threads.

#include <algorithm>

#include "plan.h"

namespace pellucid {
namespace {

Range rows_of(const Frame& f, bool selected, int thread) {
  return share(f.count(selected), thread, f.pool.threads());
}

// Pairs of panels of a gated product whose results are still in the second-level cache when the gate is
// applied.
constexpr int kGatedPairs = 8;

// Values that every thread computes for itself sooner than it would meet the others: about 2 µs.
constexpr int64_t kAloneValues = 8 << 10;

// K and V of one KV head of row r, to its place in the cache. k and v are slots.
void store_row(const Frame& f, int layer, int seq, int head, int r, int k, int v) {
  const int d = f.kv.d_head, position = f.step.positions[r];
  const int page = f.step.page_tables[int64_t{seq} * f.step.table_width + position / f.kv.page_size];
  f.rows.store_kv(f.kv, f.kv.k(layer, page, head), f.kv.v(layer, page, head), position % f.kv.page_size,
                  f.floats(k, r) + head * d, f.floats(v, r) + head * d);
}

}  // namespace

void EmbedOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, false, thread);
  const PackedMatrix& t = *table;
  for (int r = first; r < end; ++r) {
    float* row = f.floats(out, r);
    f.kernels.unpack_row[static_cast<int>(t.format())](
        t.data(), t.rows(), t.cols(), (positions ? f.step.positions : f.step.tokens)[r], row);
    if (scale != 1.0f) f.rows.scale(row, scale, t.cols(), row);
  }
}

void RowStep::run(const Frame& f, int r, int shift) const {
  const int from = kind == Kind::select ? f.step.logit_rows[r] : r;
  const float* a = f.floats(x, x_here ? from + shift : from);
  if (kind == Kind::quantize) {
    uint8_t* row = f.bytes(out, r + shift);
    for (int g = 0; g < groups; ++g) f.kernels.quantize(a + int64_t{g} * n, n, row + g * quant_row_bytes(n));
    return;
  }
  float* to = f.floats(out, r + shift);
  switch (kind) {
    case Kind::rms_norm:
      for (int g = 0; g < groups * n; g += n) f.rows.rms_norm(a + g, weight, number, n, to + g);
      break;
    case Kind::layer_norm:
      for (int g = 0; g < groups * n; g += n) f.rows.layer_norm(a + g, weight, number, n, to + g);
      break;
    case Kind::multiply:
      for (int g = 0; g < groups * n; g += n) f.rows.multiply(a + g, weight, n, to + g);
      break;
    case Kind::shift:
      for (int g = 0; g < groups * n; g += n) f.rows.add(a + g, weight, n, to + g);
      break;
    case Kind::scale:
      f.rows.scale(a, number, groups * n, to);
      break;
    case Kind::soft_cap:
      f.rows.soft_cap(a, number, groups * n, to);
      break;
    case Kind::activate:
      f.rows.activate(activation, a, groups * n, to);
      break;
    case Kind::add:
      f.rows.add(a, f.floats(y, y_here ? r + shift : r), groups * n, to);
      break;
    case Kind::glu:
      f.rows.glu(activation, a, f.floats(y, y_here ? r + shift : r), groups * n, to);
      break;
    case Kind::gate:
      f.rows.scale(a, f.kernels.experts.sigmoid(*f.floats(y, y_here ? r + shift : r)), groups * n, to);
      break;
    case Kind::route:
      f.kernels.experts.route(a, n, groups, number != 0.0f, f.floats(y, r + shift), to);
      break;
    case Kind::mix:
      mix(f, f.floats(y, y_here ? r + shift : r), groups, n, to, [&](int j) { return a + int64_t{j} * n; });
      break;
    case Kind::select:
      std::copy(a, a + groups * n, to);
      break;
    case Kind::quantize:
      break;
  }
  if (quant != kNone) f.kernels.quantize(to, kind == Kind::mix ? n : groups * n, f.bytes(quant, r + shift));
}

void RowsOp::run(const Frame& f, int thread) const {
  const auto [first, end] = rows_of(f, selected, thread);
  for (int r = first; r < end; ++r)
    for (const RowStep& step : steps) step.run(f, r, 0);
}

int prepare(const Frame& f, const std::vector<RowStep>& steps, int thread, int rows) {
  if (steps.empty()) return 0;
  int64_t values = 0;
  for (const RowStep& step : steps) values += int64_t{step.groups} * step.n;
  const int threads = f.pool.threads();
  if (values * rows <= kAloneValues && int64_t{rows} * threads <= f.max_rows) {
    for (int r = 0; r < rows; ++r)
      for (const RowStep& step : steps) step.run(f, r, thread * rows);
    return thread * rows;
  }
  const auto [first, end] = share(rows, thread, threads);
  for (int r = first; r < end; ++r)
    for (const RowStep& step : steps) step.run(f, r, 0);
  f.meet(thread);
  return 0;
}

void LinearOp::multiply(const Frame& f, const LinearPart& part, const Share& s) const {
  const PackedMatrix& m = *part.matrix;
  const int input = m.quantized() ? quant : x;
  LinearArgs a{};
  a.w = m.data();
  a.rows = m.rows();
  a.cols = m.cols();
  a.panel0 = s.panel0;
  a.panel1 = s.panel1;
  a.tokens = s.rows;
  a.x = f.bytes(input, (m.quantized() ? quant_here : x_here) ? s.row + s.shift : s.row);
  a.x_stride = f.stride(input);
  a.out = f.floats(part.out, s.row);
  a.out_stride = f.stride(part.out) / 4;
  a.bias = part.bias;
  if (residual != kNone) {
    a.residual = f.floats(residual, residual_here ? s.row + s.shift : s.row);
    a.residual_stride = f.stride(residual) / 4;
  }
  a.scratch = f.product_scratch + kLinearScratch * s.thread;
  a.packed = s.packed;
  f.kernels.linear[static_cast<int>(m.format())](a);
}

void LinearOp::run(const Frame& f, int thread) const {
  const int rows = f.count(selected), threads = f.pool.threads();
  if (rows == 0) return;
  const int shift = prepare(f, steps, thread, rows);
  for (int row = 0; row < rows; row += kRowBlock) {
    const int count = std::min(kRowBlock, rows - row);
    const PackedMatrix* last = nullptr;
    const auto product = [&](const LinearPart& part, int panel0, int panel1) {
      const bool packed =
          last && last->format() == part.matrix->format() && last->cols() == part.matrix->cols();
      multiply(f, part, {shift, row, count, panel0, panel1, thread, packed});
      last = part.matrix;
    };
    if (gated) {
      // The same pairs of panels of both, so that a thread has whole blocks of 32 of the product.
      const PackedMatrix& m = *parts[0].matrix;
      const auto [first, end] = share((m.panels() + 1) / 2, thread, threads);
      for (int pair = first; pair < end; pair += kGatedPairs) {
        const int panel0 = 2 * pair, panel1 = std::min(2 * std::min(pair + kGatedPairs, end), m.panels());
        for (const LinearPart& part : parts) product(part, panel0, panel1);
        const int col = kPanel * panel0, cols = std::min(panel1 * kPanel, m.rows()) - col;
        for (int r = row; r < row + count; ++r) {
          float* to = f.floats(parts[0].out, r) + col;
          f.rows.glu(activation, to, f.floats(parts[1].out, r) + col, cols, to);
          if (out_quant != kNone)
            f.kernels.quantize(to, cols,
                               f.bytes(out_quant, r) + col / kBlock * static_cast<int>(sizeof(QuantBlock)));
        }
      }
      continue;
    }
    // The panels of all parts in a row, cut into equal shares by their bytes.
    int64_t total = 0, before = 0;
    for (const LinearPart& part : parts) total += part.matrix->nbytes();
    for (const LinearPart& part : parts) {
      const PackedMatrix& m = *part.matrix;
      const int64_t panel = m.nbytes() / m.panels();
      const auto cut = [&](int t) {
        const int64_t at = total * t / threads - before;
        return static_cast<int>(std::clamp<int64_t>((at + panel - 1) / panel, 0, m.panels()));
      };
      const int first = cut(thread), end = cut(thread + 1);
      if (first < end) product(part, first, end);
      before += panel * m.panels();
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
  for (int item = thread; item < f.step.seqs * f.kv.kv_heads; item += f.pool.threads()) {
    const int seq = item / f.kv.kv_heads, head = item % f.kv.kv_heads;
    for (int r = f.step.seq_starts[seq]; r < f.step.seq_starts[seq + 1]; ++r)
      store_row(f, layer, seq, head, r, k, v);
  }
}

void Turn::run(const Frame& f, int r, int head) const {
  const int d = f.kv.d_head;
  const int64_t at = int64_t{f.step.positions[r]} * half;
  const float* from = f.floats(x, r) + head * d;
  if (weight) {
    float* between = f.floats(normed, r) + head * d;
    f.rows.rms_norm(from, weight, eps, d, between);
    from = between;
  }
  f.rows.rope(from, cos + at, sin + at, half, d, f.floats(out, r) + head * d);
}

void RopeStoreOp::run(const Frame& f, int thread) const {
  // One KV head of a group of keys lies in one thread, so that two threads never write one cache line of a
  // page.
  const int heads = q.heads / f.kv.kv_heads;
  const auto [first, end] =
      share(static_cast<int>(f.groups.size()) * f.kv.kv_heads, thread, f.pool.threads());
  for (int item = first; item < end; ++item) {
    const Tile& group = f.groups[static_cast<size_t>(item / f.kv.kv_heads)];
    const int head = item % f.kv.kv_heads;
    for (int r = group.row; r < group.row + group.rows; ++r) {
      for (int h = head * heads; h < (head + 1) * heads; ++h) q.run(f, r, h);
      k.run(f, r, head);
      store_row(f, layer, group.seq, head, r, k.out, v);
    }
  }
}

}  // namespace pellucid
