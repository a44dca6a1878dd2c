// The kernels for AMX: those for AVX-512, but products with many quantised rows; only this file is compiled
// with those flags.
#include "amx_tiles.h"
//
#include "matmul.h"

namespace pellucid {
namespace {

template <Format format, class Fmt>
void linear_tiled(const LinearArgs& args) {
  using Tiled = Sweep<simd::Avx512, Fmt, AmxTiles<Fmt>>;
  if (Tiled::pays(args))
    Tiled::run(args);
  else
    avx512_kernels().linear[static_cast<int>(format)](args);
}

template <Format format, class Fmt>
void set(Kernels& table) {
  table.linear[static_cast<int>(format)] = linear_tiled<format, Fmt>;
}

Kernels make_amx() {
  using S = simd::Avx512;
  Kernels table = avx512_kernels();
  table.name = "amx";
  table.spin_tiles = spin_tiles;
  set<Format::q4_0, Q4_0<S>>(table);
  set<Format::q4_1, Q4_1<S>>(table);
  set<Format::q5_0, Q5_0<S>>(table);
  set<Format::q5_1, Q5_1<S>>(table);
  set<Format::q8_0, Q8_0<S>>(table);
  set<Format::q2_k, Q2_K<S>>(table);
  set<Format::q3_k, Q3_K<S>>(table);
  set<Format::q4_k, Q4_K<S>>(table);
  set<Format::q5_k, Q5_K<S>>(table);
  set<Format::q6_k, Q6_K<S>>(table);
  set<Format::q8_k, Q8_K<S>>(table);
  set<Format::iq4_nl, IQ4_NL<S>>(table);
  set<Format::iq4_xs, IQ4_XS<S>>(table);
  set<Format::mxfp4, MXFP4<S>>(table);
  set<Format::tq1_0, TQ1_0<S>>(table);
  set<Format::tq2_0, TQ2_0<S>>(table);
  return table;
}

}  // namespace

const Kernels& amx_kernels() {
  static const Kernels table = make_amx();
  return table;
}

}  // namespace pellucid
