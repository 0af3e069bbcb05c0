"""Whatever is killed behind the frontend at any moment, no stream breaks, and every answer is the undisturbed one.

The short form makes 100 kills, the long one 1,000. TEST_CHAOS_SEED gives
other ones; a failure shows the seed and the log.
"""

import asyncio

import pytest
from chaos_run import under_fire
from chaos_streams import requests
from chaos_tree import UNDER_FIRE, processes
from kill_schedule import schedule
from tree import Tree

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null", "--null-step-ms", 20, "--max-num-batched-tokens", 128, "--executor", "broadcast")
TINY = ("--dtype", "float32", "--max-num-batched-tokens", 512, "--executor", "broadcast")
DELAYS_S = {"prefill": 0.15, "decode": 0.5, "load": 0.8}
SLOW_DELAYS_S = {"prefill": 0.4, "decode": 1.0, "load": 5.0}
"""Where a worker imports torch and reads a model."""


def fire_at(arguments, asked, home, seed, kills, report, delays_s=DELAYS_S):
    """Starts a tree, learns the undisturbed answers, kills, and compares."""

    async def fire(tree):
        victims = sorted(name for name in processes(tree) if not name.startswith("frontend"))
        async with under_fire(tree, asked) as chaos:
            await chaos.learn()
            await chaos.run(schedule(seed, victims, kills, delays_s=delays_s))
        return chaos

    with Tree(*arguments, *UNDER_FIRE, env=home) as tree:
        tree.wait_ready(60)
        chaos = asyncio.run(fire(tree))
        print(f"seed {seed}", chaos, tree.log, sep="\n")
        report.add(seed, chaos)
        assert not chaos.differences(), "see the log of kills above"
        assert len(chaos.met) == kills, "kills that meet no stream prove nothing"
        assert flat(chaos), (chaos.before, chaos.after)
        assert tree.stop() == (0, {})


def flat(chaos):
    """Whether those that have lived through all of it hold what they held."""
    survivors = [name for name in chaos.before if name.startswith(("frontend", "supervisor"))]
    gained = {
        name: [after - before for before, after in zip(chaos.before[name], chaos.after[name], strict=True)]
        for name in survivors
    }
    return all(memory < 16 * 1024 and descriptors < 8 for memory, descriptors in gained.values())


SHAPES = {
    "dp1": (),
    "inline": ("--executor", "inline"),
    "dp2": ("--dp", 2, "--detokenizers", 2),
    "tp2": ("--tp", 2),
    "pp2": ("--pp", 2, "--kv-cache-tokens", 8192),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", SHAPES)
def test_null_model(shape, home, seed, report):
    fire_at((*NULL, *SHAPES[shape]), requests(), home, f"null {shape} {seed}", 18, report)


@pytest.mark.timeout(900)
def test_tiny_llama(tiny_model, home, seed, report):
    """The arithmetic itself: logits that depend on every token before, scores to the last bit."""
    fire_at((tiny_model, *TINY, "--dp", 2), requests(), home, f"tiny dp2 {seed}", 10, report, SLOW_DELAYS_S)


# The long form: 1,000 kills.


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", SHAPES)
def test_null_model_for_long(shape, home, seed, report):
    fire_at((*NULL, *SHAPES[shape]), requests(), home, f"null {shape} long {seed}", 150, report)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", ["dp2", "tp2", "pp2"])
def test_tiny_llama_for_long(shape, tiny_model, home, seed, report):
    arguments = (tiny_model, *TINY, *SHAPES[shape])
    fire_at(arguments, requests(), home, f"tiny {shape} long {seed}", 60, report, SLOW_DELAYS_S)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", ["dp1", "dp2"])
def test_smollm2_for_long(shape, home, seed, report):
    """The real model, in float32 on the kernels whose rows do not depend on their batch."""
    arguments = (*TINY, "--kv-cache-tokens", 32_768, *SHAPES[shape])
    fire_at(arguments, requests(longest=60), home, f"smollm2 {shape} long {seed}", 35, report, SLOW_DELAYS_S)
