// Products with many rows of activations. A panel is expanded once a chunk of k (formats/expand.h) and swept
// by tiles of tokens, whose activations lie packed as the dots want them. Law: the chain of an output over k
// is the format's, one chain in ascending order, so the bits are those of every other path.
#pragma once
#include "formats/dots.h"
#include "kernels.h"

namespace pellucid {
namespace {

// Store rows [row, row + n) of one token: bias first, then residual.
template <class S>
PELLUCID_INLINE void store_rows(const LinearArgs& args, int token, int row, int n, typename S::F acc) {
  if (args.bias) acc = S::add(S::load_n(args.bias + row, n), acc);
  if (args.residual) acc = S::add(S::load_n(args.residual + token * args.residual_stride + row, n), acc);
  float* out = args.out + token * args.out_stride + row;
  if (n == kPanel)
    S::store(out, acc);
  else
    S::store_n(out, acc, n);
}

constexpr int kSweepTile = 12;    // tokens whose sums lie in registers
constexpr int kTileStep = 4;      // a tile narrower than that is a multiple of this
constexpr int kChunkBlocks = 32;  // blocks of 32 k expanded at once: the chunk stays in the first-level cache
constexpr int kSweepTokens = 192;         // tokens for which a panel is expanded once, at most
constexpr int kPackedBytes = 1024 << 10;  // their packed activations, which stay in the second-level cache

// What a token's block of 32 k takes, packed, in words of 4 bytes: 8 of codes, then by chain
//   scaled start scale | with_min scale min | halves start0 start1 scale | two_mins float(-sum) float(-sum1)
//   scale
// Packed, a block of a tile of n tokens is these words in turn, n of each.
constexpr int packed_words(Chain chain) {
  return chain == Chain::scaled || chain == Chain::with_min ? 10 : 11;
}

struct Scratch {
  alignas(64) uint8_t expanded[kChunkBlocks * expanded_bytes(Chain::two_mins)];
  alignas(64) float sums[kSweepTokens * kPanel];
  alignas(64) uint32_t activations[kPackedBytes / 4];
};
static_assert(sizeof(Scratch) <= kLinearScratch);

// What stands in for the offset 2^shift of the codes.
template <class S, Chain chain, int shift>
PELLUCID_INLINE uint32_t start_of(int32_t minus_sum) {
  if constexpr (shift == 7 && !S::kDot128Offset) return 0;
  return static_cast<uint32_t>(minus_sum) << shift;
}

// Tokens [token, token + n) of a tile of `width`, all their blocks; those past n get zeros.
template <class S, Expansion form, int width>
void pack_tile(const LinearArgs& args, int token, int n, uint32_t* out) {
  constexpr int kWords = packed_words(form.chain);
  const Activations a{args.x + token * args.x_stride, args.x_stride};
  const int blocks = args.cols / kBlock;
  for (int64_t b = 0; b < blocks; ++b, out += kWords * width) {
    for (int i = 0; i < n; ++i) {
      const QuantBlock& x = a.at(i, b);
      for (int j = 0; j < 8; ++j) out[j * width + i] = static_cast<uint32_t>(load_word(x.codes + 4 * j));
      uint32_t* more = out + 8 * width + i;
      if constexpr (form.chain == Chain::scaled) {
        more[0] = start_of<S, form.chain, form.shift>(x.minus_sum);
        more[width] = as_scalar_bits(x.scale);
      } else if constexpr (form.chain == Chain::with_min) {
        more[0] = as_scalar_bits(x.scale);
        more[width] = as_scalar_bits(x.min);
      } else if constexpr (form.chain == Chain::halves) {
        more[0] = start_of<S, form.chain, form.shift>(x.minus_sum - x.minus_sum1);
        more[width] = start_of<S, form.chain, form.shift>(x.minus_sum1);
        more[2 * width] = as_scalar_bits(x.scale);
      } else {
        more[0] = as_scalar_bits(static_cast<float>(x.minus_sum));
        more[width] = as_scalar_bits(static_cast<float>(x.minus_sum1));
        more[2 * width] = as_scalar_bits(x.scale);
      }
    }
    for (int j = 0; j < kWords; ++j)
      for (int i = n; i < width; ++i) out[j * width + i] = 0;
  }
}

PELLUCID_INLINE const float* floats_at(const void* p) { return static_cast<const float*>(p); }

// The dots of a block, or of one half of it, with vectors [first, first + count) of w.
template <class S, int max_code, int NR, int first, int count, bool with_start>
PELLUCID_INLINE void dots_of(const uint8_t* w, const uint32_t* x, const uint32_t* start,
                             typename S::I (&dots)[NR]) {
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) dots[i] = with_start ? S::set1_i(static_cast<int32_t>(start[i])) : S::zero_i();
  PELLUCID_UNROLL
  for (int j = first; j < first + count; ++j) {
    const typename S::B codes = S::load_b(w + 64 * j);
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) {
      const int32_t word = static_cast<int32_t>(x[NR * j + i]);
      dots[i] = max_code > 127 ? S::dot128(dots[i], codes, word) : S::dot(dots[i], codes, word);
    }
  }
}

// NR tokens with `blocks` expanded blocks, added to sums[NR][16].
template <class S, Expansion form, int NR>
void sweep_tile(const uint8_t* w, const uint32_t* x, int blocks, float* sums) {
  using F = typename S::F;
  using I = typename S::I;
  F acc[NR];
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) acc[i] = S::load(sums + kPanel * i);
  for (int b = 0; b < blocks; ++b, w += expanded_bytes(form.chain), x += packed_words(form.chain) * NR) {
    const float* scales = floats_at(w + kExpandedScales);
    const float* more = floats_at(x + 8 * NR);
    I dots[NR];
    if constexpr (form.chain == Chain::scaled) {
      dots_of<S, form.max_code, NR, 0, 8, true>(w, x, x + 8 * NR, dots);
      const F scale = S::load(scales);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i)
        acc[i] = S::fma(S::cvt(dots[i]), S::mul(scale, S::set1(more[NR + i])), acc[i]);
    } else if constexpr (form.chain == Chain::with_min) {
      dots_of<S, form.max_code, NR, 0, 8, false>(w, x, x, dots);
      const F scale = S::load(scales), min = S::load(scales + kPanel);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) {
        acc[i] = S::fma(S::cvt(dots[i]), S::mul(scale, S::set1(more[i])), acc[i]);
        acc[i] = S::fma(min, S::set1(more[NR + i]), acc[i]);
      }
    } else if constexpr (form.chain == Chain::halves) {
      dots_of<S, form.max_code, NR, 0, 4, true>(w, x, x + 8 * NR, dots);
      F part[NR];
      const F scale0 = S::load(scales), scale1 = S::load(scales + kPanel);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) part[i] = S::mul(S::cvt(dots[i]), scale0);
      dots_of<S, form.max_code, NR, 4, 4, true>(w, x, x + 9 * NR, dots);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i)
        acc[i] = S::fma(S::fma(S::cvt(dots[i]), scale1, part[i]), S::set1(more[2 * NR + i]), acc[i]);
    } else {
      dots_of<S, form.max_code, NR, 0, 8, false>(w, x, x, dots);
      const F d = S::load(scales), min = S::load(scales + kPanel), rest = S::load(scales + 2 * kPanel);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) {
        F part = S::mul(S::cvt(dots[i]), d);
        part = S::fma(min, S::set1(more[i]), part);
        part = S::fma(rest, S::set1(more[NR + i]), part);
        acc[i] = S::fma(part, S::set1(more[2 * NR + i]), acc[i]);
      }
    }
  }
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) S::store(sums + kPanel * i, acc[i]);
}

// Whether the scratch holds what a sweep needs.
template <class Fmt>
PELLUCID_INLINE bool sweeps(const LinearArgs& args) {
  return args.scratch &&
         int64_t{args.cols} / kBlock * packed_words(Fmt::kForm.chain) * 4 * kSweepTile <= kPackedBytes;
}

// A tile narrower than kSweepTile, found by counting down.
template <class S, Expansion form, int width>
PELLUCID_INLINE void pack_rest(const LinearArgs& args, int token, int n, uint32_t* out) {
  if constexpr (width > kTileStep) {
    if (n <= width - kTileStep) return pack_rest<S, form, width - kTileStep>(args, token, n, out);
  }
  pack_tile<S, form, width>(args, token, n, out);
}
template <class S, Expansion form, int width>
PELLUCID_INLINE void sweep_rest(int n, const uint8_t* w, const uint32_t* x, int blocks, float* sums) {
  if constexpr (width > kTileStep) {
    if (n <= width - kTileStep) return sweep_rest<S, form, width - kTileStep>(n, w, x, blocks, sums);
  }
  sweep_tile<S, form, width>(w, x, blocks, sums);
}
PELLUCID_INLINE int tile_width(int n) {
  return n < kSweepTile ? (n + kTileStep - 1) / kTileStep * kTileStep : kSweepTile;
}

// All panels of args, for the tokens [first, last).
template <class S, class Fmt>
void sweep_tokens(const LinearArgs& args, int first, int last) {
  constexpr Expansion form = Fmt::kForm;
  constexpr int kWords = packed_words(form.chain), kFmtBlocks = Fmt::kCols / kBlock;
  Scratch& s = *static_cast<Scratch*>(static_cast<void*>(args.scratch));
  const int tokens = last - first, blocks = args.cols / kBlock;
  for (int t = 0; t < tokens; t += kSweepTile)
    pack_rest<S, form, kSweepTile>(args, first + t, tokens - t < kSweepTile ? tokens - t : kSweepTile,
                                   s.activations + int64_t{t} * blocks * kWords);
  // Chunks of whole blocks of the format, of nearly one size.
  const int chunks = (blocks + kChunkBlocks - 1) / kChunkBlocks;
  const int chunk = ((blocks + chunks - 1) / chunks + kFmtBlocks - 1) / kFmtBlocks * kFmtBlocks;
  const int64_t panel_bytes = int64_t{blocks / kFmtBlocks} * Fmt::kBytes;
  for (int panel = args.panel0; panel < args.panel1; ++panel) {
    const uint8_t* w = args.w + panel * panel_bytes;
    for (int t = 0; t < tokens + kSweepTile - 1; ++t)
      if (t < kSweepTokens) S::store(s.sums + kPanel * t, S::zero());
    for (int b = 0; b < blocks; b += chunk) {
      const int n = blocks - b < chunk ? blocks - b : chunk;
      expand<S, Fmt>(w, n / kFmtBlocks, s.expanded);
      w += n / kFmtBlocks * Fmt::kBytes;
      for (int t = 0; t < tokens; t += kSweepTile)
        sweep_rest<S, form, kSweepTile>(
            tokens - t, s.expanded,
            s.activations + (int64_t{t} * blocks + int64_t{b} * tile_width(tokens - t)) * kWords, n,
            s.sums + kPanel * t);
    }
    const int row = panel * kPanel;
    const int rows = args.rows - row < kPanel ? args.rows - row : kPanel;
    for (int t = 0; t < tokens; ++t) store_rows<S>(args, first + t, row, rows, S::load(s.sums + kPanel * t));
  }
}

template <class S, class Fmt>
void sweep(const LinearArgs& args) {
  const int64_t token_bytes = int64_t{args.cols} / kBlock * packed_words(Fmt::kForm.chain) * 4;
  const int64_t fit = kPackedBytes / token_bytes / kSweepTile * kSweepTile;
  const int most = fit < kSweepTokens ? static_cast<int>(fit) : kSweepTokens;
  const int parts = (args.tokens + most - 1) / most;
  const int step = ((args.tokens + parts - 1) / parts + kSweepTile - 1) / kSweepTile * kSweepTile;
  for (int first = 0; first < args.tokens; first += step)
    sweep_tokens<S, Fmt>(args, first, first + step < args.tokens ? first + step : args.tokens);
}

}  // namespace
}  // namespace pellucid
