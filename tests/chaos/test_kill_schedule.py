"""The schedule of kills: its promises, for many seeds."""

from collections import Counter

import pytest
from kill_schedule import KINDS, PHASES, schedule

VICTIMS = ["balancer", "detokenizer-0", "engine-0", "worker-0-0", "engine-1", "worker-1-0"]
DELAYS_S = {"prefill": 0.1, "decode": 0.5, "load": 1.0}


def made(seed, count=200):
    return schedule(seed, VICTIMS, count, delays_s=DELAYS_S)


def test_a_seed_makes_a_schedule():
    assert made("a") == made("a") != made("b")


@pytest.mark.parametrize("seed", range(20))
def test_everything_comes(seed):
    kills = made(seed)
    assert len(kills) == 200
    assert {kill.kind for kill in kills} == set(KINDS)
    assert {kill.phase for kill in kills} == set(PHASES)
    assert all(0 <= kill.delay_s <= DELAYS_S[kill.phase] for kill in kills)
    often = Counter(kill.victim for kill in kills if kill.phase != "load")
    assert set(often) == set(VICTIMS)
    assert max(often.values()) - min(often.values()) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_who_loads_was_killed_before(seed):
    kills = made(seed)
    for before, kill in zip([None, *kills], kills, strict=False):
        assert kill.phase != "load" or (before.victim == kill.victim and kill.kind != "SIGSTOP")
