// Matrix products over packed panels. Law: an output is one chain over k whatever the tile it is computed in,
// so tiles, token blocks, panels and threads may be cut anywhere.
#pragma once
#include "formats/floats.h"
#include "formats/iq4.h"
#include "formats/mxfp4.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"
#include "formats/q8_k.h"
#include "formats/ternary.h"
#include "kernels.h"
#include "sweep.h"

namespace pellucid {
namespace {

constexpr int64_t kTokenBytes = 256 << 10;  // activations swept for each panel; they stay in L2
constexpr int kAhead = 4096;                // bytes the weight stream is fetched ahead

template <class S, class Fmt>
struct QuantizedTile {
  static constexpr int kMax = S::kRowTile;
  static int64_t panel_bytes(int cols) { return static_cast<int64_t>(cols / Fmt::kCols) * Fmt::kBytes; }

  template <int NR>
  static void run(const uint8_t* w, const LinearArgs& args, int token, int row, int n) {
    RowSums<S, NR> sums;
    sums.a = {args.x + token * args.x_stride, args.x_stride};
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) sums.acc[i] = S::zero();
    const int64_t blocks = args.cols / Fmt::kCols;
    for (int64_t b = 0; b < blocks; ++b, w += Fmt::kBytes) {
      if constexpr (NR <= 4)
        for (int line = 0; line < Fmt::kBytes; line += 64) prefetch(w + kAhead + line);
      Fmt::accumulate(w, b, sums);
    }
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) store_rows<S>(args, token + i, row, n, sums.acc[i]);
  }
};

template <class S, class Fmt>
struct FloatTile {
  static constexpr int kMax = S::kFloatTile;
  static constexpr int kStep = kPanel * static_cast<int>(sizeof(typename Fmt::Element));
  static int64_t panel_bytes(int cols) { return static_cast<int64_t>(cols) * kStep; }

  template <int NR>
  static void run(const uint8_t* w, const LinearArgs& args, int token, int row, int n) {
    typename S::F even[NR], odd[NR];
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) even[i] = odd[i] = S::zero();
    const uint8_t* x = args.x + token * args.x_stride;
    const int pairs = args.cols / 2;
    for (int k = 0; k < pairs; ++k, w += 2 * kStep, x += 8) {
      if constexpr (NR <= 4)
        for (int line = 0; line < 2 * kStep; line += 64) prefetch(w + kAhead + line);
      add<NR>(Fmt::load(w), x, args.x_stride, even);
      add<NR>(Fmt::load(w + kStep), x + 4, args.x_stride, odd);
    }
    if (args.cols % 2) add<NR>(Fmt::load(w), x, args.x_stride, even);
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) store_rows<S>(args, token + i, row, n, S::add(even[i], odd[i]));
  }

 private:
  template <int NR>
  static PELLUCID_INLINE void add(typename S::F w, const uint8_t* x, int64_t stride,
                                  typename S::F (&acc)[NR]) {
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) {
      float value;
      __builtin_memcpy(&value, x + i * stride, 4);
      acc[i] = S::fma(w, S::set1(value), acc[i]);
    }
  }
};

// A tile of n < NR rows, found by counting down.
template <class Tile, int NR>
PELLUCID_INLINE void run_rest(int n, const uint8_t* w, const LinearArgs& args, int token, int row, int rows) {
  if constexpr (NR > 1) {
    if (n == NR - 1)
      Tile::template run<NR - 1>(w, args, token, row, rows);
    else
      run_rest<Tile, NR - 1>(n, w, args, token, row, rows);
  }
}

template <class Tile>
void linear(const LinearArgs& args) {
  const int64_t panel_bytes = Tile::panel_bytes(args.cols);
  const int64_t fit = kTokenBytes / args.x_stride / Tile::kMax * Tile::kMax;
  const int step = fit < Tile::kMax ? Tile::kMax : fit < args.tokens ? static_cast<int>(fit) : args.tokens;
  for (int first = 0; first < args.tokens; first += step) {
    const int last = first + step < args.tokens ? first + step : args.tokens;
    for (int panel = args.panel0; panel < args.panel1; ++panel) {
      const uint8_t* w = args.w + panel * panel_bytes;
      const int row = panel * kPanel;
      const int rows = args.rows - row < kPanel ? args.rows - row : kPanel;
      int token = first;
      for (; token + Tile::kMax <= last; token += Tile::kMax)
        Tile::template run<Tile::kMax>(w, args, token, row, rows);
      run_rest<Tile, Tile::kMax>(last - token, w, args, token, row, rows);
    }
  }
}

// Few rows unpack in registers; more expand each panel once.
template <class S, class Fmt>
void linear_quantized(const LinearArgs& args) {
  if (Sweep<S, Fmt>::pays(args))
    Sweep<S, Fmt>::run(args);
  else
    linear<QuantizedTile<S, Fmt>>(args);
}

template <class Fmt>
void unpack_quantized(const uint8_t* packed, int, int cols, int row, float* out) {
  const int64_t blocks = cols / Fmt::kCols;
  const uint8_t* w = packed + row / kPanel * blocks * Fmt::kBytes;
  for (int64_t b = 0; b < blocks; ++b) Fmt::unpack(w + b * Fmt::kBytes, row % kPanel, out + b * Fmt::kCols);
}

template <class Fmt>
void unpack_floats(const uint8_t* packed, int, int cols, int row, float* out) {
  using Element = typename Fmt::Element;
  const uint8_t* w =
      packed + static_cast<int64_t>(row / kPanel) * cols * kPanel * static_cast<int>(sizeof(Element));
  for (int64_t k = 0; k < cols; ++k) {
    Element e;
    __builtin_memcpy(&e, w + (k * kPanel + row % kPanel) * static_cast<int>(sizeof(Element)),
                     sizeof(Element));
    out[k] = Fmt::value(e);
  }
}

}  // namespace
}  // namespace pellucid
