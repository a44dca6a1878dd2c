// Products with many rows of activations. A panel is expanded once a chunk of k (formats/expand.h) and swept
// by tiles of tokens, whose activations lie packed as the dots want them. Law: the chain of an output over k
// is the format's, one chain in ascending order, so the bits are those of every other path.
#pragma once
#include <type_traits>

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
template <class S, int shift>
PELLUCID_INLINE uint32_t start_of(int32_t minus_sum) {
  if constexpr (shift == 7 && !S::Sweep::kWideDots) return 0;
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
        more[0] = start_of<S, form.shift>(x.minus_sum);
        more[width] = as_scalar_bits(x.scale);
      } else if constexpr (form.chain == Chain::with_min) {
        more[0] = as_scalar_bits(x.scale);
        more[width] = as_scalar_bits(x.min);
      } else if constexpr (form.chain == Chain::halves) {
        more[0] = start_of<S, form.shift>(x.minus_sum - x.minus_sum1);
        more[width] = start_of<S, form.shift>(x.minus_sum1);
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

// How many vectors of w can be multiplied into one sum of 16 bits: a power of two, or 0 for codes that a
// signed byte cannot hold, which need the offset taken off them first. Where dots are wide it does not
// matter.
template <class V>
constexpr int vectors_that_fit(int max_code) {
  if (V::kWideDots) return 8;
  if (max_code > 127) return 0;
  int n = 8;
  while (n * 2 * 127 * max_code > 32767) n /= 2;
  return n;
}

// Added to the dots: vectors [first, first + count) of w.
template <class V, int fit, int NR, int first, int count>
PELLUCID_INLINE void add_dots(const uint8_t* w, const uint32_t* x, typename V::I (&dots)[NR]) {
  const auto word = [&](int i, int j) { return static_cast<int32_t>(x[NR * j + i]); };
  if constexpr (V::kWideDots) {
    PELLUCID_UNROLL
    for (int j = first; j < first + count; ++j) {
      const typename V::B codes = V::load_b(w + 64 * j);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) dots[i] = V::dot(dots[i], codes, word(i, j));
    }
  } else if constexpr (fit == 0) {
    PELLUCID_UNROLL
    for (int j = first; j < first + count; ++j) {
      const typename V::B codes = V::signed_codes(V::load_b(w + 64 * j));
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) dots[i] = V::widen(dots[i], V::signed_pairs(codes, word(i, j)));
    }
  } else {
    constexpr int kStep = fit < count ? fit : count;
    PELLUCID_UNROLL
    for (int j = first; j < first + count; j += kStep) {
      typename V::I pairs[NR];
      PELLUCID_UNROLL
      for (int n = 0; n < kStep; ++n) {
        const typename V::B codes = V::load_b(w + 64 * (j + n));
        PELLUCID_UNROLL
        for (int i = 0; i < NR; ++i) {
          const typename V::I more = V::pairs(codes, word(i, j + n));
          pairs[i] = n == 0 ? more : V::add_pairs(pairs[i], more);
        }
      }
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) dots[i] = V::widen(dots[i], pairs[i]);
    }
  }
}

// The dots of a block, or of one half of it, from zero or from `start`.
template <class V, int fit, int NR, int first, int count, bool with_start>
PELLUCID_INLINE void dots_of(const uint8_t* w, const uint32_t* x, const uint32_t* start,
                             typename V::I (&dots)[NR]) {
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) dots[i] = with_start ? V::set1_i(static_cast<int32_t>(start[i])) : V::zero_i();
  add_dots<V, fit, NR, first, count>(w, x, dots);
}

// NR tokens with the first V::kLanes rows of `blocks` expanded blocks, added to sums[NR][16].
template <class V, Chain chain, int fit, int NR>
void sweep_tile(const uint8_t* w, const uint32_t* x, int blocks, float* sums) {
  using F = typename V::F;
  using I = typename V::I;
  F acc[NR];
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) acc[i] = V::load(sums + kPanel * i);
  for (int b = 0; b < blocks; ++b, w += expanded_bytes(chain), x += packed_words(chain) * NR) {
    const float* scales = floats_at(w + kExpandedScales);
    const float* more = floats_at(x + 8 * NR);
    I dots[NR];
    if constexpr (chain == Chain::scaled) {
      dots_of<V, fit, NR, 0, 8, true>(w, x, x + 8 * NR, dots);
      const F scale = V::load(scales);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i)
        acc[i] = V::fma(V::cvt(dots[i]), V::mul(scale, V::set1(more[NR + i])), acc[i]);
    } else if constexpr (chain == Chain::with_min) {
      dots_of<V, fit, NR, 0, 8, false>(w, x, x, dots);
      const F scale = V::load(scales), min = V::load(scales + kPanel);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) {
        acc[i] = V::fma(V::cvt(dots[i]), V::mul(scale, V::set1(more[i])), acc[i]);
        acc[i] = V::fma(min, V::set1(more[NR + i]), acc[i]);
      }
    } else if constexpr (chain == Chain::halves) {
      dots_of<V, fit, NR, 0, 4, true>(w, x, x + 8 * NR, dots);
      F part[NR];
      const F scale0 = V::load(scales), scale1 = V::load(scales + kPanel);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) part[i] = V::mul(V::cvt(dots[i]), scale0);
      dots_of<V, fit, NR, 4, 4, true>(w, x, x + 9 * NR, dots);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i)
        acc[i] = V::fma(V::fma(V::cvt(dots[i]), scale1, part[i]), V::set1(more[2 * NR + i]), acc[i]);
    } else {
      dots_of<V, fit, NR, 0, 8, false>(w, x, x, dots);
      const F d = V::load(scales), min = V::load(scales + kPanel), rest = V::load(scales + 2 * kPanel);
      PELLUCID_UNROLL
      for (int i = 0; i < NR; ++i) {
        F part = V::mul(V::cvt(dots[i]), d);
        part = V::fma(min, V::set1(more[i]), part);
        part = V::fma(rest, V::set1(more[NR + i]), part);
        acc[i] = V::fma(part, V::set1(more[2 * NR + i]), acc[i]);
      }
    }
  }
  PELLUCID_UNROLL
  for (int i = 0; i < NR; ++i) V::store(sums + kPanel * i, acc[i]);
}

// A tile of n tokens is kTokens wide, or the least multiple of kTokenStep that holds them: what `with` gets,
// as a constant.
template <int width, int step, class With>
PELLUCID_INLINE void with_width(int n, const With& with) {
  if constexpr (width > step) {
    if (n <= width - step) return with_width<width - step, step>(n, with);
  }
  with(std::integral_constant<int, width>());
}

// Tiles of dots: what a sweep does with a tile of tokens, and how their activations lie.
template <class S, class Fmt>
struct DotTiles {
  using V = typename S::Sweep;
  static constexpr Expansion kForm = Fmt::kForm;
  static constexpr int kFrom = S::kSweepFrom;  // tokens from which on a sweep pays
  static constexpr int kTokens = V::kTokens, kStep = V::kTokenStep;
  static constexpr int kWords = packed_words(kForm.chain);
  static constexpr int kMinus = 0;  // taken off the codes as they are expanded

  // Tokens [token, token + n), all their blocks.
  static void pack(const LinearArgs& args, int token, int n, uint32_t* out) {
    with_width<kTokens, kStep>(n, [&](auto width) { pack_tile<S, kForm, width>(args, token, n, out); });
  }

  // n tokens, packed from x on, with expanded blocks [first, first + blocks); added to sums.
  void sweep(const uint8_t* w, const uint32_t* x, int first, int blocks, int n, float* sums) {
    with_width<kTokens, kStep>(n, [&](auto width) {
      for (int lane = 0; lane < kPanel; lane += V::kLanes)
        sweep_tile<V, kForm.chain, vectors_that_fit<V>(kForm.max_code), width>(
            w + 4 * lane, x + int64_t{first} * width * kWords, blocks, sums + lane);
    });
  }
};

template <class S, class Fmt, class Tiles = DotTiles<S, Fmt>>
struct Sweep {
  static constexpr int kTile = Tiles::kTokens, kStep = Tiles::kStep, kFmtBlocks = Fmt::kCols / kBlock;
  static constexpr int kWords = Tiles::kWords;
  static_assert(kTile % kStep == 0 && kSweepTokens % kTile == 0 && kChunkBlocks % kFmtBlocks == 0);

  // Tokens whose packed activations fit into the scratch.
  static int fit(const LinearArgs& args) {
    const int64_t bytes = int64_t{args.cols} / kBlock * kWords * 4;
    const int64_t tokens = kPackedBytes / bytes / kTile * kTile;
    return tokens < kSweepTokens ? static_cast<int>(tokens) : kSweepTokens;
  }

  // Whether it is possible and sooner done than tile by tile.
  static bool pays(const LinearArgs& args) {
    return args.scratch && args.tokens >= Tiles::kFrom && fit(args) > 0;
  }

  static void run(const LinearArgs& args) {
    Tiles tiles;
    const int most = fit(args), parts = (args.tokens + most - 1) / most;
    const int step = ((args.tokens + parts - 1) / parts + kTile - 1) / kTile * kTile;
    for (int first = 0; first < args.tokens; first += step)
      run_tokens(tiles, args, first, args.tokens - first < step ? args.tokens - first : step,
                 args.packed && parts == 1);
  }

 private:
  // All panels of args for the tokens [first, first + tokens).
  static void run_tokens(Tiles& tiles, const LinearArgs& args, int first, int tokens, bool packed) {
    Scratch& s = *static_cast<Scratch*>(static_cast<void*>(args.scratch));
    const int blocks = args.cols / kBlock;
    for (int t = 0; t < tokens && !packed; t += kTile)
      Tiles::pack(args, first + t, tokens - t < kTile ? tokens - t : kTile,
                  s.activations + int64_t{t} * blocks * kWords);
    // Chunks of whole blocks of the format, of nearly one size.
    const int chunks = (blocks + kChunkBlocks - 1) / kChunkBlocks;
    const int chunk = ((blocks + chunks - 1) / chunks + kFmtBlocks - 1) / kFmtBlocks * kFmtBlocks;
    const uint8_t* w = args.w + int64_t{args.panel0} * (blocks / kFmtBlocks) * Fmt::kBytes;
    for (int panel = args.panel0; panel < args.panel1; ++panel) {
      for (int t = 0; t < (tokens + kStep - 1) / kStep * kStep; ++t) S::store(s.sums + kPanel * t, S::zero());
      for (int b = 0; b < blocks; b += chunk) {
        const int n = blocks - b < chunk ? blocks - b : chunk;
        expand<S, Fmt, Tiles::kMinus>(w, n / kFmtBlocks, s.expanded);
        w += n / kFmtBlocks * Fmt::kBytes;
        for (int t = 0; t < tokens; t += kTile)
          tiles.sweep(s.expanded, s.activations + int64_t{t} * blocks * kWords, b, n,
                      tokens - t < kTile ? tokens - t : kTile, s.sums + kPanel * t);
      }
      const int row = panel * kPanel;
      const int rows = args.rows - row < kPanel ? args.rows - row : kPanel;
      for (int t = 0; t < tokens; ++t)
        store_rows<S>(args, first + t, row, rows, S::load(s.sums + kPanel * t));
    }
  }
};

}  // namespace
}  // namespace pellucid
