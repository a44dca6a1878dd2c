// Which table of kernels this process uses: the best the CPU has, or the one named by PELLUCID_ISA.
#pragma once
#include "kernels.h"

namespace pellucid {

// The table of this process, chosen at the first call. Throws std::invalid_argument, with one line for the
// user, when PELLUCID_ISA names a set that is unknown or that this CPU lacks.
const Kernels& kernels();

// The table of that name; null when there is none or the CPU lacks it.
const Kernels* kernels_for(const char* isa);

// All names known to this build, best first; ends with a null.
const char* const* isa_names();

struct CpuFeature {
  const char* name;
  bool present;
};

// What was looked for and found; ends with a null name.
const CpuFeature* cpu_features();

}  // namespace pellucid
