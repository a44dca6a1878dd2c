// Packing 16 whole rows at a time. Law: the bytes are those of the format's own `pack`, called for each row;
// what is here is its quick form, by transposing words between rows in 16-byte vectors. A format without one
// is packed row by row.
#pragma once
#include "formats/floats.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace pellucid {
namespace {

using Words = uint32_t __attribute__((vector_size(16)));
using Halves = uint16_t __attribute__((vector_size(16)));
using Octets = uint8_t __attribute__((vector_size(16)));

template <class V>
PELLUCID_INLINE V load16(const uint8_t* p) {
  V v;
  __builtin_memcpy(&v, p, 16);
  return v;
}
template <class V>
PELLUCID_INLINE void store16(uint8_t* p, V v) {
  __builtin_memcpy(p, &v, 16);
}

PELLUCID_INLINE void transpose(Words (&v)[4]) {
  const Words a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5),
              b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
  const Words c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7),
              d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// Three rounds of zipping the first half of the vectors with the second.
PELLUCID_INLINE void transpose(Halves (&v)[8]) {
  for (int round = 0; round < 3; ++round) {
    Halves next[8];
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = __builtin_shufflevector(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) v[i] = next[i];
  }
}

PELLUCID_INLINE void transpose(Octets (&v)[16]) {
  for (int round = 0; round < 4; ++round) {
    Octets next[16];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] =
          __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                14, 30, 15, 31);
    }
    for (int i = 0; i < 16; ++i) v[i] = next[i];
  }
}

// Four words of each of 16 rows, read by of(lane), into 4 packed vectors.
template <class Of>
PELLUCID_INLINE void put_words(uint8_t* vectors, Of of) {
  for (int group = 0; group < 4; ++group) {
    Words v[4] = {of(4 * group), of(4 * group + 1), of(4 * group + 2), of(4 * group + 3)};
    transpose(v);
    for (int j = 0; j < 4; ++j) store16(vectors + 64 * j + 16 * group, v[j]);
  }
}

// 16 rows of a matrix from some block on, `stride` bytes apart.
struct FileRows {
  const uint8_t* first;
  int64_t stride;
  PELLUCID_INLINE const uint8_t* at(int lane) const { return first + lane * stride; }
};

PELLUCID_INLINE void put_halves(uint8_t* p, const FileRows& rows, int offset) {
  for (int lane = 0; lane < kPanel; ++lane) put_half(p, lane, rows.at(lane) + offset);
}

template <class Fmt>
struct PackRows {
  static PELLUCID_INLINE void pack(const FileRows& rows, uint8_t* p) {
    for (int lane = 0; lane < kPanel; ++lane) Fmt::pack(rows.at(lane), lane, p);
  }
};

template <class S>
struct PackRows<Q4_0<S>> {
  static PELLUCID_INLINE void pack(const FileRows& rows, uint8_t* p) {
    put_words(p, [&](int lane) { return load16<Words>(rows.at(lane) + 2); });
    put_halves(p + 256, rows, 0);
  }
};

template <class S>
struct PackRows<Q4_1<S>> {
  static PELLUCID_INLINE void pack(const FileRows& rows, uint8_t* p) {
    put_words(p, [&](int lane) { return load16<Words>(rows.at(lane) + 4); });
    put_halves(p + 256, rows, 0);
    put_halves(p + 288, rows, 2);
  }
};

template <class S>
struct PackRows<Q5_0<S>> {
  static PELLUCID_INLINE void pack(const FileRows& rows, uint8_t* p) {
    put_words(p, [&](int lane) { return load16<Words>(rows.at(lane) + 6); });
    for (int group = 0; group < 4; ++group) {
      Words fifths;
      for (int i = 0; i < 4; ++i) fifths[i] = word_at(rows.at(4 * group + i) + 2);
      store16(p + 256 + 16 * group, by_word(by_word(fifths)));
    }
    put_halves(p + 320, rows, 0);
  }

 private:
  // Bits of even places to the low half, of odd places to the high half: twice, bit 4j + b goes to 8b + j.
  static PELLUCID_INLINE Words by_word(Words x) {
    x = swapped<1>(x, 0x22222222u);
    x = swapped<2>(x, 0x0c0c0c0cu);
    x = swapped<4>(x, 0x00f000f0u);
    return swapped<8>(x, 0x0000ff00u);
  }
  template <int by>
  static PELLUCID_INLINE Words swapped(Words x, uint32_t mask) {
    const Words t = (x ^ x >> by) & mask;
    return x ^ t ^ t << by;
  }
};

template <class S>
struct PackRows<Q8_0<S>> {
  static PELLUCID_INLINE void pack(const FileRows& rows, uint8_t* p) {
    for (int half = 0; half < 2; ++half)
      put_words(p + 256 * half,
                [&](int lane) { return load16<Words>(rows.at(lane) + 2 + 16 * half) ^ 0x80808080u; });
    put_halves(p + 512, rows, 0);
  }
};

template <class S>
struct PackRows<Q4_K<S>> {
  static PELLUCID_INLINE void pack(const FileRows& rows, uint8_t* p) {
    constexpr int kSub = Q4_K<S>::kSub;
    put_halves(p, rows, 0);
    put_halves(p + 32, rows, 2);
    // A row's 8 scales and 8 minima are 16 bytes; 16 rows of them are transposed.
    Octets scales[16];
    for (int lane = 0; lane < kPanel; ++lane) {
      const uint8_t* b = rows.at(lane) + 4;
      const uint32_t sc = word_at(b), mn = word_at(b + 4), both = word_at(b + 8);
      const Words row = {sc & 0x3f3f3f3fu, (both & kLowNibbles) | (sc >> 6 & 0x03030303u) << 4,
                         mn & 0x3f3f3f3fu, (both >> 4 & kLowNibbles) | (mn >> 6 & 0x03030303u) << 4};
      __builtin_memcpy(&scales[lane], &row, 16);
    }
    transpose(scales);
    for (int s = 0; s < 8; ++s) {
      uint8_t* sub = p + 64 + kSub * s;
      store16(sub, scales[s]);
      store16(sub + 16, scales[8 + s]);
      const int q = 16 + 32 * (s / 2);
      if (s % 2 == 0)
        put_words(sub + 32, [&](int lane) {
          const Words first = load16<Words>(rows.at(lane) + q),
                      second = load16<Words>(rows.at(lane) + q + 16);
          return (first & kLowNibbles) | (second & kLowNibbles) << 4;
        });
      else
        put_words(sub + 32, [&](int lane) {
          const Words first = load16<Words>(rows.at(lane) + q),
                      second = load16<Words>(rows.at(lane) + q + 16);
          return (first >> 4 & kLowNibbles) | (second & ~kLowNibbles);
        });
    }
  }
};

template <class S>
struct PackRows<Q6_K<S>> {
  static PELLUCID_INLINE void pack(const FileRows& rows, uint8_t* p) {
    constexpr int kSub = Q6_K<S>::kSub;
    put_halves(p, rows, 208);
    Octets scales[16];
    for (int lane = 0; lane < kPanel; ++lane) scales[lane] = load16<Octets>(rows.at(lane) + 192);
    transpose(scales);
    for (int s = 0; s < 8; ++s) {
      uint8_t* sub = p + 32 + kSub * s;
      store16(sub + 384, scales[2 * s]);
      store16(sub + 400, scales[2 * s + 1]);
      const int low = 64 * (s / 4) + 32 * (s % 2), shift = s % 4 < 2 ? 0 : 4;
      put_words(sub, [&](int lane) {
        const Words first = load16<Words>(rows.at(lane) + low),
                    second = load16<Words>(rows.at(lane) + low + 16);
        return (first >> shift & kLowNibbles) | (second >> shift & kLowNibbles) << 4;
      });
    }
    for (int half = 0; half < 2; ++half)
      for (int h = 0; h < 2; ++h)
        for (int group = 0; group < 4; ++group) {
          Words v[4];
          for (int i = 0; i < 4; ++i) v[i] = load16<Words>(rows.at(4 * group + i) + 128 + 32 * half + 16 * h);
          transpose(v);
          for (int quarter = 0; quarter < 4; ++quarter) {
            Words pairs = v[0] >> 2 * quarter & 0x03030303u;
            for (int f = 1; f < 4; ++f) pairs |= (v[f] >> 2 * quarter & 0x03030303u) << 2 * f;
            store16(p + 32 + kSub * (4 * half + quarter) + 256 + 64 * h + 16 * group, pairs);
          }
        }
  }
};

// Elements of `kSize` bytes of 16 whole rows of `cols`, element by element.
template <int kSize>
PELLUCID_INLINE void pack_elements(const FileRows& rows, int64_t cols, uint8_t* p) {
  constexpr int kRun = 16 / kSize;  // elements of a vector, and rows that are transposed together
  constexpr int kStep = kPanel * kSize;
  int64_t k = 0;
  for (; k + kRun <= cols; k += kRun, p += kRun * kStep)
    for (int first = 0; first < kPanel; first += kRun) {
      std::conditional_t<kSize == 2, Halves, Words> v[kRun];
      for (int i = 0; i < kRun; ++i)
        v[i] = load16<std::remove_reference_t<decltype(v[0])>>(rows.at(first + i) + k * kSize);
      transpose(v);
      for (int i = 0; i < kRun; ++i) store16(p + i * kStep + first * kSize, v[i]);
    }
  for (; k < cols; ++k, p += kStep)
    for (int lane = 0; lane < kPanel; ++lane)
      __builtin_memcpy(p + lane * kSize, rows.at(lane) + k * kSize, kSize);
}

}  // namespace
}  // namespace pellucid
