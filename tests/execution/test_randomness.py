"""Counter-based randomness."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actorlm.execution.randomness import MASK, mix, word

WORDS = st.integers(0, MASK)


def test_mix_is_splitmix64():
    golden = 0x9E3779B97F4A7C15
    assert [mix(golden * i & MASK) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=20))
def test_arrays_and_ints_agree(pairs):
    seeds, positions = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    assert word(seeds, positions).tolist() == [word(seed, position) for seed, position in pairs]


def test_words_of_neighbours_are_uniform():
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 1000)
    positions = np.tile(np.arange(1000, dtype=np.uint64), 100)
    words = word(seeds, positions)
    assert len(np.unique(words)) == len(words)
    for shift in (0, 28, 60):
        counts = np.bincount((words >> np.uint64(shift) & np.uint64(15)).astype(int), minlength=16)
        assert ((counts - 6250) ** 2 / 6250).sum() < 44.3, "chi-square, 15 degrees of freedom, p = 1e-4"
