#include "dispatch.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#ifdef PELLUCID_X86
#include <cpuid.h>
#endif
#ifdef PELLUCID_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pellucid {
namespace {

#ifdef PELLUCID_X86

bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

// GCC 12 does not know it by name.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

// Bits of the last word of leaf 7.
bool has_leaf7(unsigned bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> bit & 1);
}

// Tiles are 8 KiB of state a thread, which Linux saves only for a process that asks. The answer holds for all
// its threads, those to come too; it is no where the processor, the hypervisor or the system lacks tiles, or
// where a thread has a signal stack that is too small for them.
bool tiles_granted() {
#ifdef PELLUCID_AMX
  constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

// __builtin_cpu_supports also asks whether the system saves the wide registers.
struct Features {
  bool avx2 = __builtin_cpu_supports("avx2");
  bool fma = __builtin_cpu_supports("fma");
  bool f16c = avx2 && has_f16c();
  bool avx_vnni = avx2 && has_avx_vnni();
  bool bmi2 = __builtin_cpu_supports("bmi2");
  bool avx512f = __builtin_cpu_supports("avx512f");
  bool avx512bw = __builtin_cpu_supports("avx512bw");
  bool avx512dq = __builtin_cpu_supports("avx512dq");
  bool avx512vl = __builtin_cpu_supports("avx512vl");
  bool avx512vnni = __builtin_cpu_supports("avx512vnni");
  bool amx_tile = has_leaf7(24);
  bool amx_int8 = amx_tile && has_leaf7(25);

  bool set_avx2() const { return avx2 && fma && f16c && bmi2; }
  bool set_avx2_vnni() const { return set_avx2() && avx_vnni; }
  bool set_avx512() const { return set_avx2() && avx512f && avx512bw && avx512dq && avx512vl && avx512vnni; }
  bool set_amx() const { return set_avx512() && amx_int8 && tiles_granted(); }
};

const Features& features() {
  static const Features found;
  return found;
}

#ifdef PELLUCID_AMX
constexpr const char* kNames[] = {"amx", "avx512", "avx2_vnni", "avx2", "scalar", nullptr};
#else
constexpr const char* kNames[] = {"avx512", "avx2_vnni", "avx2", "scalar", nullptr};
#endif

#else

constexpr const char* kNames[] = {"scalar", nullptr};

#endif

const Kernels& choose() {
  const char* wanted = std::getenv("PELLUCID_ISA");
  if (wanted && *wanted) {
    if (const Kernels* table = kernels_for(wanted)) return *table;
    std::string usable;
    for (const char* const* name = kNames; *name; ++name)
      if (kernels_for(*name)) usable += (usable.empty() ? "" : ", ") + std::string(*name);
    throw std::invalid_argument("PELLUCID_ISA=" + std::string(wanted) +
                                " cannot be used on this machine; it can be one of: " + usable);
  }
  for (const char* const* name = kNames; *name; ++name)
    if (const Kernels* table = kernels_for(*name)) return *table;
  return scalar_kernels();
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

const Kernels* kernels_for(const char* isa) {
#ifdef PELLUCID_AMX
  if (std::strcmp(isa, "amx") == 0) return features().set_amx() ? &amx_kernels() : nullptr;
#endif
#ifdef PELLUCID_X86
  if (std::strcmp(isa, "avx512") == 0) return features().set_avx512() ? &avx512_kernels() : nullptr;
  if (std::strcmp(isa, "avx2_vnni") == 0) return features().set_avx2_vnni() ? &avx2_vnni_kernels() : nullptr;
  if (std::strcmp(isa, "avx2") == 0) return features().set_avx2() ? &avx2_kernels() : nullptr;
#endif
  return std::strcmp(isa, "scalar") == 0 ? &scalar_kernels() : nullptr;
}

const char* const* isa_names() { return kNames; }

const CpuFeature* cpu_features() {
#ifdef PELLUCID_X86
  static const Features& f = features();
  static const CpuFeature list[] = {
      {"avx2", f.avx2},         {"fma", f.fma},
      {"f16c", f.f16c},         {"avx_vnni", f.avx_vnni},
      {"bmi2", f.bmi2},         {"avx512f", f.avx512f},
      {"avx512bw", f.avx512bw}, {"avx512dq", f.avx512dq},
      {"avx512vl", f.avx512vl}, {"avx512vnni", f.avx512vnni},
      {"amx_tile", f.amx_tile}, {"amx_int8", f.amx_int8},
      {nullptr, false},
  };
#else
  static const CpuFeature list[] = {{nullptr, false}};
#endif
  return list;
}

}  // namespace pellucid
