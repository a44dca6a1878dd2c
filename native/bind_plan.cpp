// Binding of the pool, the KV store and the plan. Law: no arithmetic; check shapes, release the GIL, call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "bind.h"
#include "dispatch.h"
#include "plan.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace pellucid;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tables = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Times = nb::ndarray<int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// The memory of the paged KV cache.
struct KvStore {
  KvLayout layout;
  AlignedBuffer memory;

  KvStore(const std::string& format, int layers, int pages, int page_size, int kv_heads, int d_head) {
    layout.format = format == "q8_0" ? KvFormat::q8_0 : KvFormat::f16;
    if (format != "f16" && format != "q8_0") throw nb::value_error("KV format must be f16 or q8_0");
    if (layers < 1 || pages < 1 || kv_heads < 1 || d_head < 1 || page_size < kKeyGroup ||
        page_size % kKeyGroup)
      throw nb::value_error("KV sizes must be positive, page_size a multiple of 16");
    if (layout.format == KvFormat::q8_0 && d_head % 32)
      throw nb::value_error("q8_0 needs heads of a multiple of 32 values");
    layout.layers = layers;
    layout.pages = pages;
    layout.page_size = page_size;
    layout.kv_heads = kv_heads;
    layout.d_head = d_head;
    memory = AlignedBuffer(static_cast<size_t>(layout.layers * layout.layer_bytes()));
    layout.base = memory.data();
  }
};

// kind, out, x, y, groups, n, weight, number, activation, quant
using StepTuple = std::tuple<int, int, int, int, int, int, int, float, std::string, int>;
// out, matrix, bias
using PartTuple = std::tuple<int, nb::object, int>;
// out, x, normed, weight, eps, heads, half, cos, sin
using TurnTuple = std::tuple<int, int, int, int, float, int, int, int, int>;

// "": none, and the number does not matter.
Activation activation_of(const std::string& name) {
  for (int i = 0; i < static_cast<int>(std::size(kActivationNames)); ++i)
    if (name == kActivationNames[i]) return static_cast<Activation>(i);
  if (!name.empty()) throw nb::value_error("plan: no such activation");
  return Activation::silu;
}

// A plan with the Python objects whose memory it reads.
struct BoundPlan {
  nb::object pool, kv;
  std::vector<nb::object> matrices;
  std::vector<const float*> constants;
  Plan plan;

  BoundPlan(nb::object pool_, nb::object kv_, const std::string& isa, int heads, int vocab, int context,
            int max_rows, int64_t arena_row_bytes)
      : pool(pool_),
        kv(kv_),
        plan(nb::cast<Pool&>(pool_), isa.empty() ? kernels() : named(isa), nb::cast<KvStore&>(kv_).layout,
             heads, vocab, context, max_rows, arena_row_bytes) {}

  static const Kernels& named(const std::string& isa) {
    const Kernels* k = kernels_for(isa.c_str());
    if (!k) throw nb::value_error("this processor, or this build, has no such instruction set");
    return *k;
  }
  const float* constant(int id) const { return id < 0 ? nullptr : constants.at(static_cast<size_t>(id)); }
  std::vector<RowStep> steps(const std::vector<StepTuple>& tuples) const {
    std::vector<RowStep> found;
    for (const auto& [kind, out, x, y, groups, n, weight, number, activation, quant] : tuples) {
      if (kind < 0 || kind >= static_cast<int>(std::size(RowStep::kNames)))
        throw nb::value_error("plan: no such kind of step");
      found.push_back({static_cast<RowStep::Kind>(kind), out, x, y, groups, n, constant(weight), number,
                       activation_of(activation), quant});
    }
    return found;
  }
  Turn turn(const TurnTuple& tuple) const {
    const auto& [out, x, normed, weight, eps, heads, half, cos, sin] = tuple;
    return {out, x, normed, constant(weight), eps, heads, half, constant(cos), constant(sin)};
  }
  LinearPart part(const PartTuple& tuple) {
    const auto& [out, object, bias] = tuple;
    return {out, matrix(object), constant(bias)};
  }
  const PackedMatrix* matrix(nb::handle object) {
    matrices.push_back(nb::borrow(object));
    return nb::cast<PackedMatrix*>(object);
  }
};

Step step_of(const Plan& plan, const Ints& tokens, const Ints& positions, const Ints& seq_starts,
             const Tables& page_tables, const Ints& logit_rows, const Logits& logits) {
  Step s;
  s.rows = static_cast<int>(tokens.size());
  s.seqs = static_cast<int>(seq_starts.size()) - 1;
  s.table_width = static_cast<int>(page_tables.shape(1));
  s.wanted = static_cast<int>(logit_rows.size());
  s.tokens = tokens.data();
  s.positions = positions.data();
  s.seq_starts = seq_starts.data();
  s.page_tables = page_tables.data();
  s.logit_rows = logit_rows.data();
  s.logits = logits.data();
  if (positions.size() != tokens.size() || s.seqs < 1 || static_cast<int>(page_tables.shape(0)) != s.seqs ||
      static_cast<int>(logits.shape(0)) < s.wanted || static_cast<int>(logits.shape(1)) != plan.vocab())
    throw nb::value_error("step: arrays differ in length");
  return s;
}

void watch(Step& s, const Plan& plan, const Ints& rows, const Rows& tapped) {
  s.watched = static_cast<int>(rows.size());
  s.watched_rows = rows.data();
  s.tapped = tapped.data();
  if (static_cast<int>(tapped.shape(0)) < s.watched ||
      static_cast<int64_t>(tapped.shape(1)) != plan.tap_width())
    throw nb::value_error("step: what is tapped has no room");
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Pool>(m, "Pool")
      .def(
          "__init__",
          [](Pool* self, int threads, const std::vector<int>& cpus) {
            if (threads < 1) throw nb::value_error("a pool has one thread at least");
            if (!cpus.empty() && static_cast<int>(cpus.size()) != threads)
              throw nb::value_error("a pinned pool needs a processor for each of its threads");
            new (self) Pool(threads, cpus);
          },
          "threads"_a, "cpus"_a = std::vector<int>())
      .def_prop_ro("threads", &Pool::threads);

  nb::class_<KvStore>(m, "KvStore")
      .def(nb::init<const std::string&, int, int, int, int, int>(), "format"_a, "layers"_a, "pages"_a,
           "page_size"_a, "kv_heads"_a, "d_head"_a)
      .def_prop_ro("nbytes", [](const KvStore& s) { return s.layout.layers * s.layout.layer_bytes(); })
      .def_prop_ro("page_bytes", [](const KvStore& s) { return s.layout.layers * s.layout.page_bytes(); })
      .def(
          "layer",
          [](KvStore& s, int layer) {
            if (layer < 0 || layer >= s.layout.layers) throw nb::index_error("no such layer");
            const size_t shape[2] = {static_cast<size_t>(s.layout.pages),
                                     static_cast<size_t>(s.layout.page_bytes())};
            return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<2>>(s.layout.k(layer, 0, 0), 2, shape,
                                                                      nb::find(s));
          },
          "layer"_a, nb::rv_policy::reference_internal)
      .def(
          "page",
          [](KvStore& s, int layer, int page) {
            if (layer < 0 || layer >= s.layout.layers || page < 0 || page >= s.layout.pages)
              throw nb::index_error("no such page");
            const size_t shape[1] = {static_cast<size_t>(s.layout.page_bytes())};
            return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(s.layout.k(layer, page, 0), 1, shape,
                                                                      nb::find(s));
          },
          "layer"_a, "page"_a, nb::rv_policy::reference_internal);

  nb::class_<BoundPlan>(m, "Plan")
      .def(nb::init<nb::object, nb::object, const std::string&, int, int, int, int, int64_t>(), "pool"_a,
           "kv"_a, "isa"_a, "heads"_a, "vocab"_a, "context"_a, "max_rows"_a, "arena_row_bytes"_a)
      .def_prop_ro("scratch_bytes", [](const BoundPlan& p) { return p.plan.scratch_bytes(); })
      .def("slot",
           [](BoundPlan& p, int64_t offset, int64_t row_bytes) { return p.plan.slot(offset, row_bytes); })
      .def("constant",
           [](BoundPlan& p, Floats values) {
             p.constants.push_back(p.plan.constant({values.data(), values.data() + values.size()}));
             return static_cast<int>(p.constants.size()) - 1;
           })
      .def("embed", [](BoundPlan& p, int out, nb::object table, float scale,
                       bool positions) { p.plan.push(EmbedOp{out, p.matrix(table), scale, positions}); })
      .def("rows", [](BoundPlan& p, const std::vector<StepTuple>& steps,
                      bool selected) { p.plan.push(RowsOp{p.steps(steps), selected}); })
      .def("linear",
           [](BoundPlan& p, const std::vector<StepTuple>& steps, int x, int quant,
              const std::vector<PartTuple>& parts, int residual, const std::string& activation, int out_quant,
              bool selected) {
             LinearOp op{
                 p.steps(steps), x,       quant, {}, residual, !activation.empty(), activation_of(activation),
                 out_quant,      selected};
             for (const PartTuple& part : parts) op.parts.push_back(p.part(part));
             p.plan.push(std::move(op));
           })
      .def("expert_linear",
           [](BoundPlan& p, const std::vector<StepTuple>& steps, int x, int quant, int chosen,
              const PartTuple& part, int top, bool shared_x) {
             p.plan.push(ExpertLinearOp{p.steps(steps), x, quant, chosen, p.part(part), top, shared_x});
           })
      .def("experts",
           [](BoundPlan& p, const std::vector<StepTuple>& steps, int x, int quant, int chosen, int weights,
              const std::vector<PartTuple>& parts, const std::string& activation, int top, int x_sorted,
              int quant_sorted, int post_quant, int out) {
             if (parts.size() != 3) throw nb::value_error("plan: experts have a gate, an up and a down");
             ExpertsOp op{p.steps(steps),
                          x,
                          quant,
                          chosen,
                          weights,
                          p.part(parts[0]),
                          p.part(parts[1]),
                          p.part(parts[2]),
                          activation_of(activation),
                          top,
                          x_sorted,
                          quant_sorted,
                          post_quant,
                          out};
             const PackedMatrix &gate = *op.gate.matrix, &up = *op.up.matrix, &down = *op.down.matrix;
             if (gate.count() != up.count() || gate.count() != down.count() || top < 1 ||
                 top > gate.count() || gate.rows() != up.rows() || gate.rows() != down.cols() ||
                 gate.cols() != up.cols() || gate.cols() != down.rows())
               throw nb::value_error("plan: the sizes of the experts contradict each other");
             p.plan.push(std::move(op));
           })
      .def("rope",
           [](BoundPlan& p, int out, int x, int heads, int d_head, int half, int cos, int sin) {
             p.plan.push(RopeOp{out, x, heads, d_head, half, p.constant(cos), p.constant(sin)});
           })
      .def("store_kv", [](BoundPlan& p, int k, int v, int layer) { p.plan.push(StoreOp{k, v, layer}); })
      .def("rope_store_kv",
           [](BoundPlan& p, const std::vector<TurnTuple>& turns, int v, int layer) {
             if (turns.size() != 2) throw nb::value_error("plan: queries and keys are turned, nothing else");
             p.plan.push(RopeStoreOp{p.turn(turns[0]), p.turn(turns[1]), v, layer});
           })
      .def("attention",
           [](BoundPlan& p, int out, int q, int layer, int heads, float scale, float cap, int window,
              int sinks) {
             p.plan.push(AttentionOp{out, q, layer, heads, scale, cap, window, p.constant(sinks)});
           })
      .def("tap",
           [](BoundPlan& p, int x, int n, const std::string& kind, int count, bool selected) {
             const auto* found = std::find(std::begin(TapOp::kNames), std::end(TapOp::kNames), kind);
             if (found == std::end(TapOp::kNames)) throw nb::value_error("plan: no such kind of tap");
             if (n < 1 || count < 0 || count > n) throw nb::value_error("plan: a tap of more than there is");
             const int64_t at = p.plan.tap_width();
             p.plan.push(
                 TapOp{x, n, static_cast<TapOp::Kind>(found - std::begin(TapOp::kNames)), count, selected});
             return at;
           })
      .def("patch", [](BoundPlan& p, int out, int x, int n,
                       bool selected) { p.plan.push(PatchOp{out, x, n, selected}); })
      .def_prop_ro("tap_width", [](const BoundPlan& p) { return p.plan.tap_width(); })
      .def_prop_ro("ops", [](const BoundPlan& p) { return p.plan.ops(); })
      .def(
          "value",
          [](BoundPlan& p, int slot, int rows, int n) {
            if (rows < 0 || rows > p.plan.max_rows() || n < 0 || int64_t{4} * n > p.plan.stride(slot))
              throw nb::value_error("plan: no such rows");
            const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(n)};
            const int64_t strides[2] = {p.plan.stride(slot) / 4, 1};
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(p.plan.value(slot, 0), 2, shape, nb::find(p),
                                                              strides);
          },
          nb::rv_policy::reference_internal)
      .def(
          "run_part",
          [](BoundPlan& p, Ints tokens, Ints positions, Ints seq_starts, Tables page_tables, Ints logit_rows,
             Logits logits, Ints watched, Rows tapped, int first, int end) {
            Step s = step_of(p.plan, tokens, positions, seq_starts, page_tables, logit_rows, logits);
            watch(s, p.plan, watched, tapped);
            const nb::gil_scoped_release free;
            p.plan.run(s, first, end);
          },
          "tokens"_a, "positions"_a, "seq_starts"_a, "page_tables"_a, "logit_rows"_a, "logits"_a, "watched"_a,
          "tapped"_a, "first"_a, "end"_a)
      .def(
          "run",
          [](BoundPlan& p, Ints tokens, Ints positions, Ints seq_starts, Tables page_tables, Ints logit_rows,
             Logits logits) {
            const Step s = step_of(p.plan, tokens, positions, seq_starts, page_tables, logit_rows, logits);
            const nb::gil_scoped_release free;
            p.plan.run(s);
          },
          "tokens"_a, "positions"_a, "seq_starts"_a, "page_tables"_a, "logit_rows"_a, "logits"_a)
      .def(
          "profile",
          [](BoundPlan& p, Ints tokens, Ints positions, Ints seq_starts, Tables page_tables, Ints logit_rows,
             Logits logits, Times times) {
            const Step s = step_of(p.plan, tokens, positions, seq_starts, page_tables, logit_rows, logits);
            if (static_cast<int>(times.shape(0)) != p.plan.threads() ||
                static_cast<int>(times.shape(1)) != p.plan.ops() || times.shape(2) != 2)
              throw nb::value_error("profile: times must be (threads, ops, 2)");
            const nb::gil_scoped_release free;
            p.plan.profile(s, times.data());
          },
          "tokens"_a, "positions"_a, "seq_starts"_a, "page_tables"_a, "logit_rows"_a, "logits"_a, "times"_a);

  m.def(
      "look",
      [](nb::ndarray<const float, nb::ndim<2>, nb::device::cpu> q, Ints positions,
         nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu> keys, float scale, float cap,
         int window, std::optional<float> sink, Floats previous,
         nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> spans,
         std::optional<nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>> sums,
         std::optional<nb::ndarray<float, nb::ndim<2>, nb::device::cpu>> weights, const std::string& isa) {
        LookArgs a{};
        a.rows = static_cast<int>(q.shape(0));
        a.d = static_cast<int>(q.shape(1));
        const int keys_end = static_cast<int>(keys.shape(0)) * kKeyGroup;
        const bool fits = a.rows == static_cast<int>(positions.size()) &&
                          static_cast<int>(keys.shape(1)) == a.d && keys.shape(2) == kKeyGroup &&
                          (a.d == 0 || q.stride(1) == 1) && static_cast<int>(previous.size()) > keys_end &&
                          spans.shape(1) == 2 && window >= 0 &&
                          (!sums || sums->shape(0) == kLookSums + spans.shape(0)) &&
                          (!weights || (weights->shape(0) == q.shape(0) && weights->stride(1) == 1));
        if (!fits) throw nb::value_error("look: arrays differ in size");
        for (int i = 0; i < a.rows; ++i) {
          const int p = positions.data()[i];
          if (p < 0 || p >= keys_end || (i && p <= positions.data()[i - 1]) ||
              (weights && p >= static_cast<int>(weights->shape(1))))
            throw nb::value_error("look: positions must ascend, and have keys");
        }
        for (size_t i = 0; i < spans.shape(0); ++i)
          if (spans(i, 0) < 0 || spans(i, 1) > keys_end)
            throw nb::value_error("look: a span is outside the keys");
        std::vector<float> scratch(static_cast<size_t>(kLookRows * keys_end));
        a.q = q.data();
        a.q_stride = q.stride(0);
        a.positions = positions.data();
        a.keys = keys.data();
        a.scale = scale;
        a.cap = cap;
        a.window = window;
        a.sink = sink ? &*sink : nullptr;
        a.previous = previous.data();
        a.span = spans.data();
        a.spans = static_cast<int>(spans.shape(0));
        a.sums = sums ? sums->data() : nullptr;
        a.weights = weights ? weights->data() : nullptr;
        a.weights_stride = weights ? weights->stride(0) : 0;
        a.scratch = scratch.data();
        a.stride = keys_end;
        const Kernels& table = isa.empty() ? kernels() : BoundPlan::named(isa);
        const nb::gil_scoped_release free;
        table.look(a);
      },
      "q"_a, "positions"_a, "keys"_a, "scale"_a, "cap"_a, "window"_a, "sink"_a.none(), "previous"_a,
      "spans"_a, "sums"_a.none(), "weights"_a.none(), "isa"_a);
  m.attr("LOOK_SUMS") = kLookSums;

  m.attr("RESULT") = kResult;
  m.attr("NONE") = kNone;
  m.attr("STEP_KINDS") = std::vector<std::string>(std::begin(RowStep::kNames), std::end(RowStep::kNames));
}
