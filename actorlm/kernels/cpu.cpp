// Which instruction sets this CPU and its operating system have.
#include "abi.h"

// 3: AVX-512 with VNNI; 2: AVX-512 (F, BW, DQ, VL); 1: AVX2 with FMA and F16C; 0: neither, or another architecture.
ACTORLM_API int cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vnni = __builtin_cpu_supports("avx512vnni");
  return avx2 ? 1 + (avx512 ? 1 + vnni : 0) : 0;
#else
  return 0;
#endif
}
