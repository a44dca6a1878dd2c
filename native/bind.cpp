// The module; its parts are in bind_*.cpp. Law: no arithmetic here; check, release the GIL, call.
#include "bind.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "Pellucid's native core";
  bind_matrix(m);
  bind_plan(m);
  bind_sample(m);
  bind_vocab(m);
}
