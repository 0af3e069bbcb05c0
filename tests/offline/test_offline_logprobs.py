"""Entries as vLLM's dicts."""

import pytest

from actorlm.checkpoint.describe import BYTES
from actorlm.logprobs import Entries
from actorlm.offline.logprobs import Logprob, places, total
from actorlm.text.tokenizer import load_tokenizer


@pytest.fixture
def entries():
    """One whose token is among the most probable two, and one whose is not, with an id that was asked for."""
    entries = Entries()
    entries.append(1, [65, 65, 66], [-0.25, -0.25, -2.0])
    entries.append(9, [0xC3, 67, 68, 65], [-8.0, -0.5, -1.0, -3.0])
    return entries


def test_places(entries):
    first, second = places(entries, 2, load_tokenizer(BYTES))
    assert first == {65: Logprob(-0.25, 1, "A"), 66: Logprob(-2.0, 2, "B")}
    assert second == {
        0xC3: Logprob(-8.0, 9, "\ufffd"),
        67: Logprob(-0.5, 1, "C"),
        68: Logprob(-1.0, 2, "D"),
        65: Logprob(-3.0, None, "A"),
    }
    assert list(second) == [0xC3, 67, 68, 65]


def test_total(entries):
    assert total(entries) == -8.25
    assert total(Entries()) == 0
