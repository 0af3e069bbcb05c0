// What a thread does between two looks at memory that another one will change.
#pragma once

namespace actorlm {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace actorlm
