// What the library exports: plain C functions. It needs no headers but the compiler's own, and Python none of it.
#pragma once

#define ACTORLM_API extern "C" __attribute__((visibility("default")))

// The types that weights may have, by the number that Python passes.
enum class Type : int { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };
