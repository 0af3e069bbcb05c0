"""Counter-based randomness: one 64-bit word per (seed, position), of nothing else. Works on ints and on uint64 arrays.

`mix` is one output of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) for the
state `x`: add the golden gamma, then two xor-shift-multiply rounds and a last xor-shift. It is a bijection of 64-bit
words. `word(seed, position) = mix(mix(seed) ^ position)`: the seed is mixed first, so that neighbouring seeds do not
walk through each other's positions.
"""

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MASK = 2**64 - 1

Words = TypeVar("Words", int, "NDArray[np.uint64]")


def mix(x: Words) -> Words:
    """splitmix64's output function; `x` is an int from 0 to 2**64 - 1 or a uint64 array."""
    state: Any = x  # numpy's types make signed integers of uint64 and int; its values do not
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    mixed: Words = state ^ (state >> 31)
    return mixed


def word(seed: Words, position: Words) -> Words:
    """The word of a seed (as unsigned 64 bits) at a position (the index of the token in its sequence)."""
    state: Any = mix(seed)
    words: Words = mix(state ^ position)
    return words
