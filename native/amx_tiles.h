// Tiles of 16 tokens by 16 weight rows on AMX. Law: the dots are the same exact integers as those of every
// other set, and the chain of an output that follows them is the format's, so the bits are equal.
//
// What bounds it [measured on a Sapphire Rapids]: while tiles are in use the second multiplier of a core's
// vector units rests, so a block of 16 x 16 x 32 takes as many clocks as its outputs take multiplications,
// 32, or 48 with minima, and conversions, which share that unit. Every other conversion is therefore made of
// two additions, which have a unit of their own: added to the bits of 1.5 * 2^23 an integer is a float with
// that added.
#pragma once
#include "simd/avx512.h"
//
#include "sweep.h"

namespace pellucid {
namespace {

constexpr float kDotBase = 0x1.8p23f;         // dots of 32 products stay below 2^22
constexpr int32_t kDotBaseBits = 0x4B400000;  // its bits

// The numbers of the tile registers: sums of even and odd blocks (of both halves of one), activations,
// weights.
constexpr int kSums = 0, kActivations = 4, kWeights = 6;

// The instructions. GCC's own wrappers take literals for registers, and do not say what memory they read.
PELLUCID_INLINE void tile_release() { asm volatile("tilerelease" ::); }
template <int tile>
PELLUCID_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
template <int tile>
PELLUCID_INLINE void tile_load(const void* p, int64_t row_step) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(tile), "r"(p), "r"(row_step));
}
template <int tile>
PELLUCID_INLINE void tile_store(void* p) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(tile), "r"(p), "r"(int64_t{64}) : "memory");
}
// sums += a * b, of signed bytes.
template <int sums, int a, int b>
PELLUCID_INLINE void tile_dots() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
}

// What the instruction that configures tiles reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr TileShapes(int tokens, int quads) {
    for (int i = 0; i < 8; ++i) {
      rows[i] = static_cast<uint8_t>(i < kWeights ? tokens : quads);
      row_bytes[i] = static_cast<uint16_t>(i < kActivations || i >= kWeights ? 64 : 4 * quads);
    }
  }
};

// What a block of tokens takes after their codes: floats of each, by chain
//   scaled scale | with_min scale min | halves scale | two_mins scale float(-sum) float(-sum1)
constexpr int token_floats(Chain chain) {
  return chain == Chain::with_min ? 2 : chain == Chain::two_mins ? 3 : 1;
}

template <class Fmt>
class AmxTiles {
  using S = simd::Avx512;
  using F = S::F;
  static constexpr Expansion kForm = Fmt::kForm;
  static constexpr Chain chain = kForm.chain;
  static constexpr bool kHalves = chain == Chain::halves;
  static constexpr int kRowBytes = kHalves ? 16 : 32;  // of activations in a tile
  static constexpr int kParts = kHalves ? 2 : 1;       // tiles of sums for a block

 public:
  static constexpr int kFrom = kHalves ? 32 : 12;
  static constexpr int kTokens = 16, kStep = 8;
  static constexpr int kWords = 8 + token_floats(chain);
  static constexpr int kMinus = chain == Chain::scaled || kHalves ? 1 << kForm.shift : 0;

  AmxTiles() = default;
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  // An idle thread has no tiles that the system would have to save.
  ~AmxTiles() { tile_release(); }

  // Packed, a block of a tile is the codes of each token, then their floats in turn; tokens past n are zeros.
  static void pack(const LinearArgs& args, int token, int n, uint32_t* out) {
    const int width = n > kStep ? kTokens : kStep, blocks = args.cols / kBlock;
    const Activations a{args.x + token * args.x_stride, args.x_stride};
    for (int64_t b = 0; b < blocks; ++b, out += kWords * width) {
      uint32_t* floats = out + 8 * width;
      for (int i = 0; i < n; ++i) {
        const QuantBlock& x = a.at(i, b);
        __builtin_memcpy(out + 8 * i, x.codes, 32);
        floats[i] = as_scalar_bits(x.scale);
        if constexpr (chain == Chain::with_min) floats[width + i] = as_scalar_bits(x.min);
        if constexpr (chain == Chain::two_mins) {
          floats[width + i] = as_scalar_bits(static_cast<float>(x.minus_sum));
          floats[2 * width + i] = as_scalar_bits(static_cast<float>(x.minus_sum1));
        }
      }
      for (int i = 8 * n; i < 8 * width; ++i) out[i] = 0;
      for (int f = 0; f < token_floats(chain); ++f)
        for (int i = n; i < width; ++i) floats[f * width + i] = 0;
    }
  }

  void sweep(const uint8_t* w, const uint32_t* x, int first, int blocks, int n, float* sums) {
    if (n > kStep)
      sweep_tile<kTokens>(w, x + int64_t{first} * kTokens * kWords, blocks, sums);
    else
      sweep_tile<kStep>(w, x + int64_t{first} * kStep * kWords, blocks, sums);
  }

 private:
  int width_ = 0;  // for which the tiles are configured

  void configure(int width) {
    if (width_ == width) return;
    width_ = width;
    const TileShapes shapes(width, kRowBytes / 4);
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }

  // The dots of one block as the tiles hold them, by token.
  template <int NR>
  struct Dots {
    alignas(64) int32_t of[kParts][NR][kPanel];

    PELLUCID_INLINE F at(int part, int i) const {
      const S::I dot = S::load_i(of[part][i]);
      if (i % 2) return S::cvt(dot);
      return S::add(S::as_float(S::add_i(dot, S::set1_i(kDotBaseBits))), S::set1(-kDotBase));
    }
  };

  // Start the dots of a block; parity chooses the registers.
  template <int parity>
  static PELLUCID_INLINE void load(const uint8_t* w, const uint32_t* x) {
    tile_zero<kSums + parity>();
    if constexpr (kHalves) {
      tile_zero<kSums + 2 + parity>();
      tile_load<kActivations>(x, 32);
      tile_load<kWeights>(w, 64);
      tile_load<kActivations + 1>(x + 4, 32);
      tile_load<kWeights + 1>(w + 256, 64);
    } else {
      tile_load<kActivations + parity>(x, 32);
      tile_load<kWeights + parity>(w, 64);
    }
  }
  template <int parity>
  static PELLUCID_INLINE void multiply() {
    if constexpr (kHalves) {
      tile_dots<kSums + parity, kActivations, kWeights>();
      tile_dots<kSums + 2 + parity, kActivations + 1, kWeights + 1>();
    } else {
      tile_dots<kSums + parity, kActivations + parity, kWeights + parity>();
    }
  }
  template <int parity, int NR>
  static PELLUCID_INLINE void take(Dots<NR>& dots) {
    tile_store<kSums + parity>(dots.of[0]);
    if constexpr (kHalves) tile_store<kSums + 2 + parity>(dots.of[1]);
  }

  // The chain of a block.
  template <int NR>
  static PELLUCID_INLINE void add(const Dots<NR>& dots, const uint8_t* w, const uint32_t* x, F (&acc)[NR]) {
    const float* scales = floats_at(w + kExpandedScales);
    const float* mine = floats_at(x + 8 * NR);
    const F scale = S::load(scales);
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) {
      const F dot = dots.at(0, i), own = S::set1(mine[i]);
      if constexpr (chain == Chain::scaled) {
        acc[i] = S::fma(dot, S::mul(scale, own), acc[i]);
      } else if constexpr (chain == Chain::with_min) {
        acc[i] = S::fma(dot, S::mul(scale, own), acc[i]);
        acc[i] = S::fma(S::load(scales + kPanel), S::set1(mine[NR + i]), acc[i]);
      } else if constexpr (chain == Chain::halves) {
        acc[i] = S::fma(S::fma(dots.at(1, i), S::load(scales + kPanel), S::mul(dot, scale)), own, acc[i]);
      } else {
        F part = S::mul(dot, scale);
        part = S::fma(S::load(scales + kPanel), S::set1(mine[NR + i]), part);
        part = S::fma(S::load(scales + 2 * kPanel), S::set1(mine[2 * NR + i]), part);
        acc[i] = S::fma(part, own, acc[i]);
      }
    }
  }

  // NR tokens with `blocks` expanded blocks, added to sums[NR][16]. In turn: a block is loaded, the dots of
  // the one before it are taken out of their tile, its own are started, and the chain of the one before that
  // goes on.
  template <int NR>
  void sweep_tile(const uint8_t* w, const uint32_t* x, int blocks, float* sums) {
    constexpr int kW = expanded_bytes(chain), kX = kWords * NR;
    configure(NR);
    Dots<NR> even, odd;
    F acc[NR];
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) acc[i] = S::load(sums + kPanel * i);
    asm volatile("" : : : "memory");  // what tiles read has been written
    load<0>(w, x);
    multiply<0>();
    int b = 0;
    for (; b + 2 < blocks; b += 2, w += 2 * kW, x += 2 * kX) {
      load<1>(w + kW, x + kX);
      take<0>(even);
      multiply<1>();
      if (b) add<NR>(odd, w - kW, x - kX, acc);
      load<0>(w + 2 * kW, x + 2 * kX);
      take<1>(odd);
      multiply<0>();
      add<NR>(even, w, x, acc);
    }
    const bool two = b + 1 < blocks;
    if (two) load<1>(w + kW, x + kX);
    take<0>(even);
    if (two) multiply<1>();
    if (b) add<NR>(odd, w - kW, x - kX, acc);
    if (two) take<1>(odd);
    add<NR>(even, w, x, acc);
    if (two) add<NR>(odd, w + kW, x + kX, acc);
    PELLUCID_UNROLL
    for (int i = 0; i < NR; ++i) S::store(sums + kPanel * i, acc[i]);
  }
};

// The most that tiles can do: `rounds` of four products of 16 x 16 x 64 on registers alone; returns the
// multiply-adds done.
inline int64_t spin_tiles(int64_t rounds) {
  const TileShapes shapes(16, 16);
  asm volatile("ldtilecfg %0" : : "m"(shapes));
  for (int64_t r = 0; r < rounds; ++r) {
    tile_dots<0, 4, 6>();
    tile_dots<1, 5, 6>();
    tile_dots<2, 4, 7>();
    tile_dots<3, 5, 7>();
  }
  tile_release();
  return rounds * 4 * 16 * 16 * 64;
}

}  // namespace
}  // namespace pellucid
