#include "cpu.h"

#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "products.h"

#if defined(__linux__)
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(_M_X64)
#include <intrin.h>
#endif

namespace bs {

#if defined(_M_X64)
namespace {
// Bits of CPUID leaf 7 that are set, with the operating system saving the registers.
bool leaf7(unsigned ebx, unsigned ecx, unsigned long long saved) {
  int info[4];
  __cpuid(info, 0);
  if (info[0] < 7) return false;
  __cpuid(info, 1);
  const bool xsave = (info[2] >> 27) & 1, fma = (info[2] >> 12) & 1, f16c = (info[2] >> 29) & 1;
  if (!xsave || !fma || !f16c || (_xgetbv(0) & saved) != saved) return false;
  __cpuidex(info, 7, 0);
  return (unsigned(info[1]) & ebx) == ebx && (unsigned(info[2]) & ecx) == ecx;
}
}  // namespace
bool has_avx2() { return leaf7(1u << 5 | 1u << 3 | 1u << 8, 0, 0x6); }
bool has_avx512() {
  // AVX512F, DQ, CD, BW, VL; VNNI
  const unsigned ebx = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  return has_avx2() && leaf7(ebx, 1u << 11, 0xe6);
}
bool has_avx512bf16() {
  int info[4];
  __cpuidex(info, 7, 1);
  return has_avx512() && leaf7(0, 1u << 1, 0xe6) && ((info[0] >> 5) & 1);
}
#elif defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vnni");
}
bool has_avx512bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512bf16");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512bf16() { return false; }
#endif

bool has_neon() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) || defined(_M_ARM64)
  return true;
#else
  return false;
#endif
}

size_t last_level_cache() {
  static const size_t size = [] {
    size_t found = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (level3 > 0) found = size_t(level3);
#endif
    return found != 0 ? found : size_t{32} << 20;
  }();
  return size;
}

#define BS_DECLARE(isa)            \
  namespace isa {                  \
  const Kernels& table();          \
  const Products& product_table(); \
  }
BS_DECLARE(baseline)
BS_DECLARE(avx2)
BS_DECLARE(avx512)
BS_DECLARE(avx512bf16)
BS_DECLARE(neon)
#undef BS_DECLARE

namespace {

struct Set {
  const char* name;
  bool (*runs)();
  const Kernels& (*table)();
  const Products& (*products)();
};

// From the plainest to the best.
constexpr Set kSets[] = {
    {"baseline", [] { return true; }, baseline::table, baseline::product_table},
#if defined(BS_HAVE_AVX2)
    {"avx2", has_avx2, avx2::table, avx2::product_table},
#endif
#if defined(BS_HAVE_AVX512)
    {"avx512", has_avx512, avx512::table, avx512::product_table},
#endif
#if defined(BS_HAVE_AVX512BF16)
    // The codec gains nothing by it.
    {"avx512bf16", has_avx512bf16, avx512::table, avx512bf16::product_table},
#endif
#if defined(BS_HAVE_NEON)
    {"neon", has_neon, neon::table, neon::product_table},
#endif
};

const Set* named(const char* name) {
  const Set* found = nullptr;
  for (const Set& set : kSets) {
    const bool wanted = *name == 0 || std::strcmp(name, set.name) == 0;
    if (wanted && set.runs()) found = &set;
  }
  return found;
}

const Set*& chosen() {
  static const Set* set = [] {
    const char* name = std::getenv("BLOCKSCALE_ISA");
    return named(name ? name : "");
  }();
  return set;
}

}  // namespace

const Kernels* kernels() { return chosen() ? &chosen()->table() : nullptr; }

const Products* products() { return chosen() ? &chosen()->products() : nullptr; }

const char* chosen_isa() { return chosen() ? chosen()->name : ""; }

const char* available_isas() {
  static char text[64];
  text[0] = 0;
  for (const Set& set : kSets) {
    if (!set.runs()) continue;
    if (text[0] != 0) std::strcat(text, " ");
    std::strcat(text, set.name);
  }
  return text;
}

bool choose_isa(const char* name) {
  const Set* set = named(name);
  if (set != nullptr) chosen() = set;
  return set != nullptr;
}

}  // namespace bs
