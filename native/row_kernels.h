// The kernels that work on one row, or on a few queries: the other half of the table in kernels.h.
// Law: the bits of an output depend on its own operands only, and are equal in every instruction set.
#pragma once
#include <cstdint>

#include "kv.h"

namespace pellucid {

enum class Activation : int { silu, gelu_tanh, clamped };  // clamped: of glu only
constexpr const char* kActivationNames[] = {"silu", "gelu_tanh", "clamped"};

constexpr int kChunk = 256;       // keys that attention takes between two rescalings
constexpr int kMaxQueries = 128;  // queries that attend together
constexpr int kMaxHead = 512;     // values of a head
constexpr float kLog2E = 1.44269504f;

// Keys that a thread attends to after those at hand.
struct NextKeys {
  const int32_t* page_table = nullptr;   // null: there is none
  int kv_head = 0, first = 0, last = 0;  // keys that are seen
};

// Queries of one sequence and one KV head against the keys of one chunk, [256 chunk, 256 chunk + 256).
struct AttendChunk {
  const KvLayout* kv;
  const int32_t* page_table;  // of the sequence
  int layer, kv_head, chunk;
  int queries;              // 1 to kMaxQueries
  const float* const* q;    // d_head floats each
  const int *first, *last;  // keys that each query sees: absolute, both included; some of them in the chunk
  float scale, cap;         // cap: bound of the scores (cap * tanh(score / cap)), or 0
  float *max, *sum;         // out, one a query; the maximum of scores times log2(e)
  float* acc;      // out, d_head floats a query: values weighted by exp(score - max), not divided by sum
  float* scratch;  // attend_scratch() floats
  NextKeys next;   // of the same layer
};
// Floats of a chunk's keys and values.
constexpr int64_t attend_scratch(int d_head) { return int64_t{kChunk} * (d_head + (d_head + 31) / 32 * 32); }

struct RowKernels {
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  void (*layer_norm)(const float* x, const float* weight, float eps, int n, float* out);
  void (*multiply)(const float* x, const float* weight, int n, float* out);
  void (*add)(const float* a, const float* b, int n, float* out);
  void (*scale)(const float* x, float factor, int n, float* out);
  void (*soft_cap)(const float* x, float cap, int n, float* out);
  void (*activate)(Activation kind, const float* x, int n, float* out);
  void (*glu)(Activation kind, const float* gate, const float* up, int n, float* out);
  void (*rope)(const float* x, const float* cos, const float* sin, int half, int d_head, float* out);
  void (*store_kv)(const KvLayout& kv, uint8_t* k_page, uint8_t* v_page, int slot, const float* k,
                   const float* v);
  void (*attend[static_cast<int>(KvFormat::count)])(const AttendChunk& a);
  void (*merge_chunk)(int n, int d, float* max, float* sum, float* acc, const float* part_max,
                      const float* part_sum, const float* part);
};

}  // namespace pellucid
