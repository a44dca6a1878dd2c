#include "matrix.h"

#include <climits>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "simd/scalar.h"
//
#include "formats/iq4.h"
#include "formats/mxfp4.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q8_k.h"
#include "formats/ternary.h"
#include "pack_rows.h"

namespace pellucid {
namespace {

using S = simd::Scalar;

template <class Fmt>
void repack_blocks(const uint8_t* src, int64_t src_row_bytes, int rows, int cols, int panel0, int panel1,
                   uint8_t* dst) {
  const int64_t blocks = cols / Fmt::kCols;
  for (int panel = panel0; panel < panel1; ++panel) {
    const int first = panel * kPanel;
    const int n = rows - first < kPanel ? rows - first : kPanel;
    const uint8_t* from = src + first * src_row_bytes;
    uint8_t* p = dst + panel * blocks * Fmt::kBytes;
    if (n == kPanel) {
      for (int64_t b = 0; b < blocks; ++b, p += Fmt::kBytes, from += Fmt::kFileBytes)
        PackRows<Fmt>::pack(FileRows{from, src_row_bytes}, p);
      continue;
    }
    std::memset(p, 0, static_cast<size_t>(blocks * Fmt::kBytes));
    for (int64_t b = 0; b < blocks; ++b, p += Fmt::kBytes, from += Fmt::kFileBytes)
      for (int lane = 0; lane < n; ++lane) Fmt::pack(from + lane * src_row_bytes, lane, p);
  }
}

template <class Fmt>
void repack_floats(const uint8_t* src, int64_t src_row_bytes, int rows, int cols, int panel0, int panel1,
                   uint8_t* dst) {
  constexpr int kSize = sizeof(typename Fmt::Element);
  for (int panel = panel0; panel < panel1; ++panel) {
    const int first = panel * kPanel;
    const int n = rows - first < kPanel ? rows - first : kPanel;
    const uint8_t* from = src + first * src_row_bytes;
    uint8_t* p = dst + panel * static_cast<int64_t>(cols) * kPanel * kSize;
    if (n == kPanel) {
      pack_elements<kSize>(FileRows{from, src_row_bytes}, cols, p);
      continue;
    }
    std::memset(p, 0, static_cast<size_t>(cols) * kPanel * kSize);
    for (int64_t k = 0; k < cols; ++k, p += kPanel * kSize, from += kSize)
      for (int lane = 0; lane < n; ++lane) std::memcpy(p + lane * kSize, from + lane * src_row_bytes, kSize);
  }
}

struct Row {
  FormatInfo info;
  void (*repack)(const uint8_t*, int64_t, int, int, int, int, uint8_t*);
};

template <class Fmt>
constexpr Row blocks(const char* name) {
  return {{name, Fmt::kCols, Fmt::kFileBytes, Fmt::kBytes, true}, repack_blocks<Fmt>};
}

template <class Fmt>
constexpr Row floats(const char* name) {
  constexpr int size = sizeof(typename Fmt::Element);
  return {{name, 1, size, kPanel * size, false}, repack_floats<Fmt>};
}

// In the order of the enum.
constexpr Row kRows[kFormats] = {
    floats<F32<S>>("f32"),       floats<F16<S>>("f16"),     floats<BF16<S>>("bf16"),
    blocks<Q4_0<S>>("q4_0"),     blocks<Q4_1<S>>("q4_1"),   blocks<Q5_0<S>>("q5_0"),
    blocks<Q5_1<S>>("q5_1"),     blocks<Q8_0<S>>("q8_0"),   blocks<Q2_K<S>>("q2_k"),
    blocks<Q3_K<S>>("q3_k"),     blocks<Q4_K<S>>("q4_k"),   blocks<Q5_K<S>>("q5_k"),
    blocks<Q6_K<S>>("q6_k"),     blocks<Q8_K<S>>("q8_k"),   blocks<IQ4_NL<S>>("iq4_nl"),
    blocks<IQ4_XS<S>>("iq4_xs"), blocks<MXFP4<S>>("mxfp4"), blocks<TQ1_0<S>>("tq1_0"),
    blocks<TQ2_0<S>>("tq2_0"),
};

}  // namespace

const FormatInfo& format_info(Format format) { return kRows[static_cast<int>(format)].info; }

Format format_named(const std::string& name) {
  for (int i = 0; i < kFormats; ++i)
    if (name == kRows[i].info.name) return static_cast<Format>(i);
  throw std::invalid_argument("the kernels have no format named " + name);
}

int64_t packed_bytes(Format format, int rows, int cols) {
  const FormatInfo& info = format_info(format);
  if (rows <= 0 || cols <= 0 || rows > INT_MAX - kPanel || cols > (1 << 24))
    throw std::invalid_argument("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) +
                                " is outside what the kernels take");
  if (cols % info.cols != 0)
    throw std::invalid_argument("rows of " + std::to_string(cols) + " values are not whole blocks of " +
                                std::to_string(info.cols) + " (" + info.name + ")");
  const int64_t panels = (rows + kPanel - 1) / kPanel;
  return panels * (cols / info.cols) * info.bytes;
}

void repack(Format format, const uint8_t* src, int64_t src_row_bytes, int rows, int cols, int panel0,
            int panel1, uint8_t* dst) {
  kRows[static_cast<int>(format)].repack(src, src_row_bytes, rows, cols, panel0, panel1, dst);
}

namespace {

// `count` is checked before anything is multiplied with it.
size_t all_bytes(Format format, int rows, int cols, int count) {
  const int64_t each = packed_bytes(format, rows, cols);
  if (count < 1 || count > INT_MAX / (rows + kPanel))
    throw std::invalid_argument(std::to_string(count) + " matrices of " + std::to_string(rows) +
                                " rows are outside what the kernels take");
  return static_cast<size_t>(each) * static_cast<size_t>(count);
}

}  // namespace

PackedMatrix::PackedMatrix(Format format, int rows, int cols, bool huge_pages, int count)
    : format_(format),
      rows_(rows),
      cols_(cols),
      count_(count),
      buffer_(all_bytes(format, rows, cols, count), huge_pages) {}

int64_t PackedMatrix::file_row_bytes() const {
  const FormatInfo& info = format_info(format_);
  return static_cast<int64_t>(cols_ / info.cols) * info.file_bytes;
}

}  // namespace pellucid
