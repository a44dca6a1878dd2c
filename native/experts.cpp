// Products with the experts that rows were given to.
// Law: rows go to their experts in order, and what an expert makes of a row depends on that row alone; an
// output is the sum over its row's experts in the order of their numbers. Only the bytes of experts that some
// row was given to are read. How rows, experts and panels are split over threads changes no bit.

#include <algorithm>
#include <cstring>

#include "plan.h"

namespace pellucid {
namespace {

// Rows up to which an expert's product takes as long as reading its weights.
constexpr int64_t kFewRows = 8;

// Values that a thread takes at a time when the experts' outputs are summed.
constexpr int kMixed = 256;

// Rows of activations and where their products go.
struct Rows {
  const uint8_t* x;
  int64_t x_stride;
  float* out;
  int n;
};

void product(const Frame& f, int thread, const LinearPart& part, int expert, const Rows& rows, int panel0,
             int panel1) {
  const PackedMatrix& m = *part.matrix;
  LinearArgs a{};
  a.w = m.data(expert);
  a.rows = m.rows();
  a.cols = m.cols();
  a.panel0 = panel0;
  a.panel1 = panel1;
  a.tokens = rows.n;
  a.x = rows.x;
  a.x_stride = rows.x_stride;
  a.out = rows.out;
  a.out_stride = m.rows();
  a.bias = part.bias ? part.bias + int64_t{expert} * m.rows() : nullptr;
  a.scratch = f.product_scratch + kLinearScratch * thread;
  f.kernels.linear[static_cast<int>(m.format())](a);
}

// Bytes of a row of activations as the matrix's format wants them.
int64_t row_bytes(const PackedMatrix& m, int cols) {
  return m.quantized() ? quant_row_bytes(cols) : int64_t{4} * cols;
}

// The pairs of a row and an expert that it was given to, by experts, and for each expert by rows.
struct Sorted {
  const int32_t* begin;  // of each expert's pairs; one more at the end
  const int32_t* row;    // of each pair
  const int32_t* place;  // of the pairs of each row, `top` a row
};

// Every thread sorts for itself, in memory of its own.
Sorted sort(const Frame& f, int thread, int rows, int top, int experts, int chosen, int shift) {
  int32_t* begin = f.sorting + thread * f.sorting_stride;
  int32_t* row = begin + experts + 2;
  int32_t* place = row + int64_t{rows} * top;
  std::fill(begin, begin + experts + 2, 0);
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < top; ++j) ++begin[static_cast<int>(f.floats(chosen, r + shift)[j]) + 2];
  for (int e = 2; e < experts + 2; ++e) begin[e] += begin[e - 1];
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < top; ++j) {
      const int at = begin[static_cast<int>(f.floats(chosen, r + shift)[j]) + 1]++;
      row[at] = r;
      place[int64_t{r} * top + j] = at;
    }
  }
  return {begin, row, place};
}

// Calls work(expert, first pair, pairs, first unit, end) for the thread's share of `units` of each expert
// that has pairs; shares are contiguous and of equal cost.
template <class Work>
void each_share(const Frame& f, int thread, const Sorted& sorted, int experts, int units, Work&& work) {
  const auto pairs = [&](int e) { return sorted.begin[e + 1] - sorted.begin[e]; };
  const auto cost = [&](int e) { return std::max<int64_t>(kFewRows, pairs(e)); };
  int64_t total = 0, at = 0;
  for (int e = 0; e < experts; ++e)
    if (pairs(e)) total += cost(e) * units;
  const int64_t from = total * thread / f.pool.threads(), to = total * (thread + 1) / f.pool.threads();
  for (int e = 0; e < experts; ++e) {
    if (!pairs(e)) continue;
    const auto cut = [&](int64_t x) {
      return static_cast<int>(std::clamp<int64_t>((x - at + cost(e) - 1) / cost(e), 0, units));
    };
    const int first = from <= at ? 0 : cut(from), end = to <= at ? 0 : cut(to);
    if (first < end) work(e, sorted.begin[e], pairs(e), first, end);
    at += cost(e) * units;
  }
}

}  // namespace

void ExpertLinearOp::run(const Frame& f, int thread) const {
  const int rows = f.step.rows, shift = prepare(f, steps, thread, rows);
  const PackedMatrix& m = *part.matrix;
  const int input = m.quantized() ? quant : x;
  const int from = (m.quantized() ? quant_here : x_here) ? shift : 0, chosen_from = chosen_here ? shift : 0;
  const auto [first, end] = share(m.panels(), thread, f.pool.threads());
  if (first == end) return;
  const int64_t stride = row_bytes(m, m.cols());
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < top; ++j) {
      const uint8_t* at = f.bytes(input, r + from) + (shared_x ? 0 : j * stride);
      const int expert = static_cast<int>(f.floats(chosen, r + chosen_from)[j]);
      product(f, thread, part, expert, {at, stride, f.floats(part.out, r) + int64_t{j} * m.rows(), 1}, first,
              end);
    }
  }
}

void ExpertsOp::run(const Frame& f, int thread) const {
  const int rows = f.step.rows, threads = f.pool.threads(), experts = gate.matrix->count();
  const int width = gate.matrix->rows(), d = gate.matrix->cols();
  const int shift = prepare(f, steps, thread, rows);
  const Sorted sorted = sort(f, thread, rows, top, experts, chosen, chosen_here ? shift : 0);

  // Several rows: each expert's lie together.
  const int quant_shift = quant_here ? shift : 0, x_shift = x_here ? shift : 0;
  if (rows > 1) {
    const auto [first, end] = share(rows * top, thread, threads);
    for (int p = first; p < end; ++p) {
      if (x != kNone)
        std::memcpy(f.floats(x_sorted, 0) + int64_t{p} * d, f.floats(x, sorted.row[p] + x_shift),
                    size_t{4} * d);
      if (quant != kNone)
        std::memcpy(f.bytes(quant_sorted, 0) + p * quant_row_bytes(d),
                    f.bytes(quant, sorted.row[p] + quant_shift), static_cast<size_t>(quant_row_bytes(d)));
    }
    f.meet(thread);
  }
  const auto input = [&](const PackedMatrix& m, int pair) -> const uint8_t* {
    if (rows == 1) return m.quantized() ? f.bytes(quant, quant_shift) : f.bytes(x, x_shift);
    return f.bytes(m.quantized() ? quant_sorted : x_sorted, 0) + pair * row_bytes(m, d);
  };

  // The same pairs of panels of both, so that a thread has whole blocks of 32 of the product.
  const int panels = gate.matrix->panels();
  each_share(f, thread, sorted, experts, (panels + 1) / 2, [&](int e, int pair, int n, int first, int end) {
    const int panel0 = 2 * first, panel1 = std::min(2 * end, panels);
    const int col = panel0 * kPanel, cols = std::min(panel1 * kPanel, width) - col;
    for (int done = 0; done < n; done += kRowBlock) {
      const int at = pair + done, count = std::min(kRowBlock, n - done);
      for (const LinearPart* part : {&gate, &up}) {
        const PackedMatrix& m = *part->matrix;
        product(f, thread, *part, e,
                {input(m, at), row_bytes(m, d), f.floats(part->out, 0) + int64_t{at} * width, count}, panel0,
                panel1);
      }
      for (int p = at; p < at + count; ++p) {
        float* to = f.floats(gate.out, 0) + int64_t{p} * width + col;
        f.rows.glu(activation, to, f.floats(up.out, 0) + int64_t{p} * width + col, cols, to);
        if (post_quant != kNone)
          f.kernels.quantize(to, cols,
                             f.bytes(post_quant, 0) + p * quant_row_bytes(width) +
                                 col / kBlock * static_cast<int>(sizeof(QuantBlock)));
      }
    }
  });
  f.meet(thread);

  const PackedMatrix& m = *down.matrix;
  const int64_t stride = row_bytes(m, width);
  each_share(f, thread, sorted, experts, m.panels(), [&](int e, int pair, int n, int first, int end) {
    for (int done = 0; done < n; done += kRowBlock) {
      const int at = pair + done;
      product(f, thread, down, e,
              {f.bytes(m.quantized() ? post_quant : gate.out, 0) + at * stride, stride,
               f.floats(down.out, 0) + int64_t{at} * d, std::min(kRowBlock, n - done)},
              first, end);
    }
  });
  f.meet(thread);

  const int blocks = (d + kMixed - 1) / kMixed;
  const auto [first, end] = share(rows * blocks, thread, threads);
  for (int item = first; item < end; ++item) {
    const int r = item / blocks, col = item % blocks * kMixed, n = std::min(kMixed, d - col);
    const float* weight = f.floats(weights, r + (weights_here ? shift : 0));
    mix(f, weight, top, n, f.floats(out, r) + col,
        [&](int j) { return f.floats(down.out, 0) + int64_t{sorted.place[int64_t{r} * top + j]} * d + col; });
  }
}

}  // namespace pellucid
