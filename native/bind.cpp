// The one file that knows Python. Law: no arithmetic here; check, release the GIL, call.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "Pellucid's native core";
}
