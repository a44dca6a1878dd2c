// Weights as the kernels want them: panels of 16 rows, repacked from the file's rows.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels.h"
#include "memory.h"

namespace pellucid {

struct FormatInfo {
  const char* name;
  int cols;        // in a block
  int file_bytes;  // of a block of one row, in the file
  int bytes;       // of a block of 16 rows, packed
  bool quantized;  // its kernels take quantised activations
};

const FormatInfo& format_info(Format format);

// Throws std::invalid_argument when there is no format of that name.
Format format_named(const std::string& name);

// Bytes of a packed matrix; throws std::invalid_argument when cols are not whole blocks or a number is out of
// bounds.
int64_t packed_bytes(Format format, int rows, int cols);

// Rows of `src` (src_row_bytes apart, whole matrix) into the panels [panel0, panel1) of `dst`, which starts
// at panel 0. Rows past `rows` in the last panel become zeros. Panels may be packed by several threads at
// once.
void repack(Format format, const uint8_t* src, int64_t src_row_bytes, int rows, int cols, int panel0,
            int panel1, uint8_t* dst);

class PackedMatrix {
 public:
  // Memory for rows x cols; throws std::invalid_argument when cols are not whole blocks or a number is not
  // positive.
  // `count`: so many matrices of that size (one for each expert), packed one behind the other.
  PackedMatrix(Format format, int rows, int cols, bool huge_pages = true, int count = 1);

  Format format() const { return format_; }
  bool quantized() const { return format_info(format_).quantized; }
  int rows() const { return rows_; }
  int cols() const { return cols_; }
  int count() const { return count_; }
  int panels() const { return (rows_ + kPanel - 1) / kPanel; }  // of one matrix
  int all_panels() const { return panels() * count_; }
  const uint8_t* data(int which = 0) const { return buffer_.data() + which * (nbytes() / count_); }
  int64_t nbytes() const { return static_cast<int64_t>(buffer_.size()); }
  int64_t file_row_bytes() const;

  // Of all rows of all matrices, the first that panel number `panel`, counted over all, holds.
  int64_t first_row(int panel) const {
    return int64_t{panel / panels()} * rows_ + int64_t{panel % panels()} * kPanel;
  }
  // Panels counted over all matrices; src are the rows of all.
  void pack(const uint8_t* src, int64_t src_row_bytes, int panel0, int panel1) {
    while (panel0 < panel1) {
      const int which = panel0 / panels(), before = which * panels(),
                end = std::min(panel1, before + panels());
      repack(format_, src + int64_t{which} * rows_ * src_row_bytes, src_row_bytes, rows_, cols_,
             panel0 - before, end - before, buffer_.data() + which * (nbytes() / count_));
      panel0 = end;
    }
  }
  // Rows counted over all matrices.
  void unpack_row(const Kernels& table, int row, float* out) const {
    table.unpack_row[static_cast<int>(format_)](data(row / rows_), rows_, cols_, row % rows_, out);
  }

 private:
  Format format_;
  int rows_, cols_, count_;
  AlignedBuffer buffer_;
};

}  // namespace pellucid
