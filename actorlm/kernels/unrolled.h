// Loops that are unrolled before anything else is made of them.
#pragma once

#include <utility>

namespace actorlm {

// Calls function(std::integral_constant<int, i>()) for i from 0 to COUNT - 1. A compiler keeps an array in registers
// where each index is a constant from the start; that of a loop which it unrolls later it may leave in memory.
template <class Function, int... I>
[[gnu::always_inline]] inline void for_each(std::integer_sequence<int, I...>, const Function &function) {
  (function(std::integral_constant<int, I>()), ...);
}

template <int COUNT, class Function>
[[gnu::always_inline]] inline void unrolled(const Function &function) {
  for_each(std::make_integer_sequence<int, COUNT>(), function);
}

}  // namespace actorlm
