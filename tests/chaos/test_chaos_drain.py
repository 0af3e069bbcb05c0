"""Kills while a tree drains: what it has accepted it finishes, and then it ends as it was asked to."""

import asyncio

import pytest
from chaos_run import under_fire
from chaos_streams import requests
from chaos_tree import UNDER_FIRE
from kill_schedule import Kill
from tree import Tree

pytestmark = [pytest.mark.serving, pytest.mark.timeout(600)]

NULL = ("--model-impl", "null", "--null-step-ms", 25, "--executor", "broadcast", "--drain-timeout-s", 120)
KILLS = {
    "worker": [Kill("worker-0-0", "SIGKILL", "drain", 0.3)],
    "everybody": [
        Kill("balancer", "SIGKILL", "drain", 0.2),
        Kill("engine-0", "SIGSEGV", "drain", 0.2),
        Kill("detokenizer-0", "exit", "drain", 0.2),
    ],
}


@pytest.mark.parametrize("victims", KILLS)
def test_drain(victims, home, report):
    async def fire(tree):
        async with under_fire(tree, requests()) as chaos:
            await chaos.learn()
            await chaos.drain(KILLS[victims])
        return chaos

    with Tree(*NULL, *UNDER_FIRE, env=home) as tree:
        tree.wait_ready(60)
        chaos = asyncio.run(fire(tree))
        print(chaos, tree.log, sep="\n")
        report.add(f"drain {victims}", chaos)
        assert not chaos.differences(), "see the log of kills above"
        assert chaos.met == chaos.killed, "a kill that meets no stream proves nothing"
        assert tree.wait() == 0, "it did what it was asked to"
        assert tree.processes() == {}
