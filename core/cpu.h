// What this machine is.
#pragma once

#include <cstddef>

namespace bs {

bool has_avx2();        // x86-64-v3
bool has_avx512();      // x86-64-v4 with VNNI: Cascade Lake, Zen 4 and later
bool has_avx512bf16();  // and with VBMI and BF16: Zen 4, Sapphire Rapids and later
bool has_neon();        // AArch64 with the dot product

// Bytes of the last-level cache: larger outputs are written past the caches.
size_t last_level_cache();

}  // namespace bs
