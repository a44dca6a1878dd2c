// The table of kernels, one for each instruction set. Law: the bits of an output depend on the weights and on
// its own row of activations only, never on the number of rows, the tile or the thread; and they are equal in
// every set.
#pragma once
#include <cstdint>

#include "row_kernels.h"

namespace pellucid {

constexpr int kPanel = 16;  // weight rows in a panel: the lanes of a vector
constexpr int kBlock = 32;  // activations that share a scale

enum class Format : int {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  q8_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  tq1_0,
  tq2_0,
  count
};
constexpr int kFormats = static_cast<int>(Format::count);

// out[t, r] = residual[t, r] + (bias[r] + sum over k of w[r, k] * x[t, k]), added in that order; absent terms
// are left out. Rows r are those of the panels [panel0, panel1) that lie below `rows`.
struct LinearArgs {
  const uint8_t* w;  // packed panels, the first at panel 0
  int rows, cols;
  int panel0, panel1;
  int tokens;
  const uint8_t* x;  // quantised rows for quantised formats, float rows for f32, f16 and bf16
  int64_t x_stride;  // bytes
  float* out;
  int64_t out_stride;     // floats
  const float* bias;      // rows floats, or null
  const float* residual;  // or null; may be `out` itself
  int64_t residual_stride;
  bool packed;       // the last call with this scratch had the same x, tokens, cols and format
  uint8_t* scratch;  // kLinearScratch bytes of this thread, 64-byte aligned; or null, which is slower
};
constexpr int64_t kLinearScratch = 1200 << 10;

// A quantised row of `cols` activations (a multiple of 32) is cols / 32 of these, padded to 64 bytes: 48
// bytes together, so that a kernel walks a row with one pointer.
struct QuantBlock {
  int8_t codes[32];
  float scale;
  float min;           // scale * sum of the codes: what a weight's minimum is multiplied with
  int32_t minus_sum;   // of all codes; shifted left it takes a weight's offset out
  int32_t minus_sum1;  // of codes 16..31
};
static constexpr int64_t quant_row_bytes(int cols) {
  return (static_cast<int64_t>(cols / kBlock) * static_cast<int64_t>(sizeof(QuantBlock)) + 63) / 64 * 64;
}

// What a mixture of experts does with one row (route.h).
struct ExpertKernels {
  float (*sigmoid)(float x);
  void (*route)(const float* logits, int experts, int top, bool normalized, float* chosen, float* weights);
  void (*add_scaled)(const float* x, float factor, int n, float* out);
};

// What rows of one query head look at (look.h), besides the kernel that serves.
constexpr int kLookRows = 4, kLookSums = 9;
struct LookArgs {
  const float* q;  // rows of d floats
  int64_t q_stride;
  int rows, d;
  const int32_t* positions;  // of the rows, ascending
  const float* keys;         // groups of 16 keys from position 0: float[d][16]
  float scale, cap;
  int window;
  const float* sink;      // or null
  const float* previous;  // the token before each key, and before one key more; padded to whole groups
  const int32_t* span;    // first and end of each span
  int spans;
  double* sums;    // kLookSums and one for each span, added to; or null
  float* weights;  // a row for each query, of which only keys that it sees are written; or null
  int64_t weights_stride;
  float* scratch;  // kLookRows rows of `stride`, a multiple of 16, floats
  int64_t stride;
};

struct Kernels {
  const char* name;
  void (*linear[kFormats])(const LinearArgs&);
  // x of `cols` floats to a quantised row. A block that holds a NaN or an infinity makes every output of its
  // row NaN.
  void (*quantize)(const float* x, int cols, uint8_t* row);
  // One row of packed weights as `cols` floats.
  void (*unpack_row[kFormats])(const uint8_t* packed, int rows, int cols, int row, float* out);
  RowKernels rows;
  ExpertKernels experts;
  void (*look)(const LookArgs&);
  // The machine's peaks, to hold the others against (peaks.h).
  int64_t (*spin)(int64_t rounds);
  void (*read)(const uint8_t* p, int64_t n);
  int64_t (*spin_tiles)(int64_t rounds) =
      nullptr;  // as spin, by matrix instructions; null where there are none
};

const Kernels& scalar_kernels();
#ifdef PELLUCID_X86
const Kernels& avx2_kernels();
const Kernels& avx2_vnni_kernels();
const Kernels& avx512_kernels();
#endif
#ifdef PELLUCID_AMX
const Kernels& amx_kernels();  // only after the system has granted tiles to this process
#endif

}  // namespace pellucid
