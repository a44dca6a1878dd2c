// Binding of the vocabulary's merges. Law: no arithmetic; check, release the GIL, call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "vocab.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Ids = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;

Ids hand_over(std::vector<std::int32_t>&& ids) {
  auto* held = new std::vector<std::int32_t>(std::move(ids));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<std::int32_t>*>(p); });
  return Ids(held->data(), {held->size()}, owner);
}

std::pair<Ids, Ids> merges(
    const std::vector<std::string>& pieces,
    nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> scores,
    nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> mergeable) {
  if (scores.shape(0) != pieces.size() || mergeable.shape(0) != pieces.size())
    throw nb::value_error("spm_merges: pieces, scores and mergeable differ in length");
  const std::vector<float> score(scores.data(), scores.data() + scores.shape(0));
  const std::vector<std::uint8_t> flags(mergeable.data(), mergeable.data() + mergeable.shape(0));
  pellucid::Merges found;
  {
    nb::gil_scoped_release release;
    found = pellucid::spm_merges(pieces, score, flags);
  }
  return {hand_over(std::move(found.left)), hand_over(std::move(found.right))};
}

}  // namespace

void bind_vocab(nb::module_& m) {
  m.def("spm_merges", &merges, "pieces"_a, "scores"_a, "mergeable"_a,
        "Merges of a SentencePiece vocabulary as (left ids, right ids), best first; see native/vocab.h.");
}
