"""Who is killed, how, and at which moment: from a seed alone, so that a run can be had again."""

import random
from typing import NamedTuple

KINDS = {"SIGKILL": 6, "SIGSEGV": 4, "exit": 4, "SIGSTOP": 1}
"""Kinds of kill and how often each comes. One that is only noticed after a time costs that time: it is rare."""
PHASES = {"prefill": 4, "decode": 4, "load": 3}
"""What the victim is to be doing, and how often."""


class Kill(NamedTuple):
    """One kill. `delay_s` is how long the phase has gone on when it comes."""

    victim: str
    kind: str
    phase: str
    delay_s: float


def schedule(seed, victims, count, *, delays_s):
    """So many kills, each victim about as often. `delays_s` is the longest delay in each phase.

    Who is killed while it loads was killed just before. Nobody is stopped while it loads: that is noticed after the
    time of a start.
    """
    draw = random.Random(seed)
    kills, order = [], []
    while len(kills) < count:
        phase = _chosen(draw, PHASES) if kills else "decode"
        order = order or draw.sample(victims, len(victims))
        victim = kills[-1].victim if phase == "load" else order.pop()
        kinds = {kind: often for kind, often in KINDS.items() if (phase, kind) != ("load", "SIGSTOP")}
        kills.append(Kill(victim, _chosen(draw, kinds), phase, draw.uniform(0, delays_s[phase])))
    return kills


def _chosen(draw, weights):
    return draw.choices(list(weights), list(weights.values()))[0]
