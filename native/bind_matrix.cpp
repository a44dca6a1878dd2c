// Matrices and their kernels in Python. Law: every size is checked here, for the kernels check none.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bind.h"
#include "dispatch.h"
#include "matrix.h"
#include "packing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Packed = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using ConstFloatRows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

[[noreturn]] void raise(const char* error, const char* message) {
  const nb::object type = nb::module_::import_("pellucid.errors").attr(error);
  PyErr_SetString(type.ptr(), message);
  throw nb::python_error();
}

const Kernels& table_of(const std::optional<std::string>& isa) {
  if (isa) {
    if (const Kernels* table = kernels_for(isa->c_str())) return *table;
    raise("ConfigError", ("this machine cannot run the kernels named " + *isa).c_str());
  }
  try {
    return kernels();
  } catch (const std::invalid_argument& e) {
    raise("ConfigError", e.what());
  }
}

void require(bool good, const char* message) {
  if (!good) throw std::invalid_argument(message);
}

template <class T, class... Sizes>
auto new_array(Sizes... sizes) {
  auto* data = new T[(static_cast<size_t>(sizes) * ...)]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<sizeof...(Sizes)>, nb::c_contig>(
      data, {static_cast<size_t>(sizes)...}, owner);
}

// Rows of activations as a format's kernel wants them.
void quantize_rows(const Kernels& table, const float* x, int64_t tokens, int cols, uint8_t* out) {
  const int64_t stride = quant_row_bytes(cols);
  for (int64_t t = 0; t < tokens; ++t) table.quantize(x + t * cols, cols, out + t * stride);
}

void require_whole(const PackedMatrix& matrix, const Bytes& data) {
  require(static_cast<int64_t>(data.shape(0)) == int64_t{matrix.rows()} * matrix.count() &&
              static_cast<int64_t>(data.shape(1)) == matrix.file_row_bytes(),
          "data must have the matrix's rows, each of its bytes in the file");
}

void pack(PackedMatrix& matrix, Bytes data, int threads) {
  require_whole(matrix, data);
  require(threads >= 1 && threads <= 1024, "threads must lie in 1..1024");
  const uint8_t* src = data.data();
  const int64_t panels = matrix.all_panels();
  const nb::gil_scoped_release release;
  auto part = [&](int i) {
    matrix.pack(src, matrix.file_row_bytes(), static_cast<int>(panels * i / threads),
                static_cast<int>(panels * (i + 1) / threads));
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(part, i);
  part(0);
}

// Packing, which holds on to what it packs until it is packed.
class HeldPacking {
 public:
  explicit HeldPacking(int threads) {
    require(threads >= 1 && threads <= 1024, "threads must lie in 1..1024");
    packing_ = std::make_unique<Packing>(threads);
  }
  ~HeldPacking() {
    const nb::gil_scoped_release release;
    packing_.reset();
  }
  HeldPacking(const HeldPacking&) = delete;
  HeldPacking& operator=(const HeldPacking&) = delete;

  void add(nb::object matrix, Bytes data, bool mapped) {
    auto& packed = nb::cast<PackedMatrix&>(matrix);
    require_whole(packed, data);
    held_.emplace_back(std::move(matrix), data);
    packing_->add(packed, data.data(), mapped);
    let_go();
  }
  bool wait(double seconds) {
    bool all = false;
    {
      const nb::gil_scoped_release release;
      all = packing_->wait(seconds);
    }
    let_go();
    return all;
  }
  const Packing& packing() const { return *packing_; }

 private:
  void let_go() {
    for (const size_t packed = packing_->packed(); let_go_ < packed; ++let_go_) held_.pop_front();
  }
  std::unique_ptr<Packing> packing_;
  std::deque<std::pair<nb::object, Bytes>> held_;
  size_t let_go_ = 0;
};

auto row(const PackedMatrix& matrix, int index) {
  if (index < 0 || index >= matrix.rows() * matrix.count()) throw nb::index_error("no such row");
  auto out = new_array<float>(matrix.cols());
  matrix.unpack_row(table_of(std::nullopt), index, out.data());
  return out;
}

auto matrix_linear(const PackedMatrix& matrix, Floats x, std::optional<Vector> bias,
                   std::optional<Floats> residual, std::optional<std::string> isa) {
  require(static_cast<int64_t>(x.shape(1)) == matrix.cols(), "x must have the matrix's cols");
  const Kernels& table = table_of(isa);
  const int64_t tokens = static_cast<int64_t>(x.shape(0));
  auto out = new_array<float>(tokens, matrix.rows());
  LinearArgs args{};
  args.w = matrix.data();
  args.rows = matrix.rows();
  args.cols = matrix.cols();
  args.panel1 = matrix.panels();
  args.tokens = static_cast<int>(tokens);
  args.out = out.data();
  args.out_stride = matrix.rows();
  require(!bias || static_cast<int64_t>(bias->shape(0)) == matrix.rows(),
          "bias must have as many values as rows");
  require(!residual || (static_cast<int64_t>(residual->shape(0)) == tokens &&
                        static_cast<int64_t>(residual->shape(1)) == matrix.rows()),
          "residual must have the shape of the result");
  args.bias = bias ? bias->data() : nullptr;
  args.residual = residual ? residual->data() : nullptr;
  args.residual_stride = matrix.rows();
  {
    const nb::gil_scoped_release release;
    std::unique_ptr<uint8_t[]> quantized;
    if (matrix.quantized()) {
      args.x_stride = quant_row_bytes(matrix.cols());
      quantized = std::make_unique<uint8_t[]>(static_cast<size_t>(tokens * args.x_stride));
      quantize_rows(table, x.data(), tokens, matrix.cols(), quantized.get());
      args.x = quantized.get();
    } else {
      args.x_stride = static_cast<int64_t>(matrix.cols()) * 4;
      args.x = reinterpret_cast<const uint8_t*>(x.data());
    }
    const AlignedBuffer scratch(static_cast<size_t>(kLinearScratch), false);
    args.scratch = scratch.data();
    table.linear[static_cast<int>(matrix.format())](args);
  }
  return out;
}

// The kernel itself on the caller's arrays, whose rows may lie apart: x are the bytes of rows as the format's
// kernel wants them.
void raw_linear(const std::string& format_name, Packed packed, int rows, int cols, ByteRows x, FloatRows out,
                std::optional<Vector> bias, std::optional<ConstFloatRows> residual,
                std::optional<std::string> isa, int panel0, int panel1) {
  const Format format = format_named(format_name);
  const int64_t row_bytes =
      format_info(format).quantized ? quant_row_bytes(cols) : static_cast<int64_t>(cols) * 4;
  const int panels = (rows + kPanel - 1) / kPanel;
  if (panel1 < 0) panel1 = panels;
  require(static_cast<int64_t>(packed.shape(0)) == packed_bytes(format, rows, cols),
          "packed must have the size of the matrix");
  require(static_cast<int64_t>(x.shape(1)) == row_bytes, "x must have rows as the kernel wants them");
  require(out.shape(0) == x.shape(0) && static_cast<int64_t>(out.shape(1)) == rows,
          "out must be (tokens, rows)");
  require(!bias || static_cast<int64_t>(bias->shape(0)) == rows, "bias must have as many values as rows");
  require(!residual || (residual->shape(0) == out.shape(0) && residual->shape(1) == out.shape(1)),
          "residual must have the shape of out");
  require(x.stride(1) == 1 && out.stride(1) == 1 && (!residual || residual->stride(1) == 1),
          "the values of a row must lie together");
  require(panel0 >= 0 && panel0 <= panel1 && panel1 <= panels, "the panels must lie in the matrix");
  const Kernels& table = table_of(isa);
  LinearArgs args{};
  args.w = packed.data();
  args.rows = rows;
  args.cols = cols;
  args.panel0 = panel0;
  args.panel1 = panel1;
  args.tokens = static_cast<int>(x.shape(0));
  args.x = x.data();
  args.x_stride = x.stride(0);
  args.out = out.data();
  args.out_stride = out.stride(0);
  args.bias = bias ? bias->data() : nullptr;
  args.residual = residual ? residual->data() : nullptr;
  args.residual_stride = residual ? residual->stride(0) : 0;
  const nb::gil_scoped_release release;
  const AlignedBuffer scratch(static_cast<size_t>(kLinearScratch), false);
  args.scratch = scratch.data();
  table.linear[static_cast<int>(format)](args);
}

auto quantize(Floats x, std::optional<std::string> isa) {
  require(x.shape(1) % kBlock == 0 && x.shape(1) > 0, "x must have whole blocks of 32 in a row");
  const Kernels& table = table_of(isa);
  const int cols = static_cast<int>(x.shape(1));
  auto out = new_array<uint8_t>(x.shape(0), quant_row_bytes(cols));
  const nb::gil_scoped_release release;
  quantize_rows(table, x.data(), static_cast<int64_t>(x.shape(0)), cols, out.data());
  return out;
}

int64_t spin(int64_t rounds, std::optional<std::string> isa) {
  const Kernels& table = table_of(isa);
  const nb::gil_scoped_release release;
  return table.spin(rounds);
}

int64_t spin_tiles(int64_t rounds, std::optional<std::string> isa) {
  const Kernels& table = table_of(isa);
  const nb::gil_scoped_release release;
  return table.spin_tiles ? table.spin_tiles(rounds) : 0;
}

void read_all(Packed data, std::optional<std::string> isa) {
  const Kernels& table = table_of(isa);
  const uint8_t* p = data.data();
  const int64_t n = static_cast<int64_t>(data.shape(0)) / 256 * 256;
  require(n > 0, "data must have at least 256 bytes");
  const nb::gil_scoped_release release;
  table.read(p, n);
}

nb::list isas() {
  nb::list names;
  for (const char* const* name = isa_names(); *name; ++name)
    if (kernels_for(*name)) names.append(*name);
  return names;
}

nb::dict features() {
  nb::dict found;
  for (const CpuFeature* f = cpu_features(); f->name; ++f) found[f->name] = f->present;
  return found;
}

}  // namespace
}  // namespace pellucid

void bind_matrix(nb::module_& m) {
  using namespace pellucid;
  nb::class_<PackedMatrix>(m, "Matrix")
      .def(
          "__init__",
          [](PackedMatrix* self, const std::string& format, int rows, int cols, bool huge_pages, int count) {
            new (self) PackedMatrix(format_named(format), rows, cols, huge_pages, count);
          },
          "format"_a, "rows"_a, "cols"_a, "huge_pages"_a = true, "count"_a = 1)
      .def("pack", pack, "data"_a, "threads"_a = 1)
      .def_prop_ro("format", [](const PackedMatrix& self) { return format_info(self.format()).name; })
      .def_prop_ro("rows", &PackedMatrix::rows)
      .def_prop_ro("cols", &PackedMatrix::cols)
      .def_prop_ro("count", &PackedMatrix::count)
      .def_prop_ro("nbytes", &PackedMatrix::nbytes)
      .def_prop_ro(
          "packed",
          [](const PackedMatrix& self) {
            return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(self.data(),
                                                                      {static_cast<size_t>(self.nbytes())});
          },
          nb::rv_policy::reference_internal)
      .def("row", row, "index"_a)
      .def("linear", matrix_linear, "x"_a, "bias"_a = nb::none(), "residual"_a = nb::none(),
           "isa"_a = nb::none());
  nb::class_<HeldPacking>(m, "Packing")
      .def(nb::init<int>(), "threads"_a)
      .def("add", &HeldPacking::add, "matrix"_a, "data"_a, "mapped"_a = false)
      .def("wait", &HeldPacking::wait, "seconds"_a)
      .def_prop_ro("bytes_done", [](const HeldPacking& self) { return self.packing().bytes_done(); })
      .def_prop_ro("unmapped_bytes_left",
                   [](const HeldPacking& self) { return self.packing().unmapped_bytes_left(); });
  m.def("linear", raw_linear, "format"_a, "packed"_a, "rows"_a, "cols"_a, "x"_a, "out"_a,
        "bias"_a = nb::none(), "residual"_a = nb::none(), "isa"_a = nb::none(), "panel0"_a = 0,
        "panel1"_a = -1);
  m.def("quantize", quantize, "x"_a, "isa"_a = nb::none());
  m.def("spin", spin, "rounds"_a, "isa"_a = nb::none());
  m.def("spin_tiles", spin_tiles, "rounds"_a, "isa"_a = nb::none());
  m.def("read", read_all, "data"_a, "isa"_a = nb::none());
  m.def("isas", isas);
  m.def("isa", [] { return table_of(std::nullopt).name; });
  m.def("cpu_features", features);
}
