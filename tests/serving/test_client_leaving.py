"""Clients over ZeroMQ that leave: politely, in the middle, or without a word. What they asked for ends at once."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import null_model
import pytest
from asking import ENDLESS, address, connected, load, read, until
from tree import PATIENCE
from tree import until as until_now

pytestmark = [pytest.mark.serving]

SEATS = 4
PROCESS = Path(__file__).with_name("client_process.py")


@pytest.fixture(scope="module")
def tree(tree_of):
    """Four seats, 20 ms a step, and long prompts take long: 16 tokens a step."""
    options = ("--null-step-ms", 20, "--max-num-seqs", SEATS, "--max-num-batched-tokens", 16)
    return tree_of("--model-impl", "null", *options)


@contextmanager
def process(tree, count):
    """A client of its own with so many endless requests, of which all are under way."""
    with subprocess.Popen([sys.executable, PROCESS, address(tree), str(count)], stdout=subprocess.PIPE) as client:
        try:
            assert client.stdout.readline() == b"asked\n"
            until_now(lambda: sum(load(tree)) >= count, 5)
            yield client
        finally:
            client.kill()


async def leave_by_break(stream):
    async for _ in stream:
        break


async def leave_by_close(stream):
    await anext(stream)
    await stream.aclose()


async def leave_by_cancel(stream):
    reader = asyncio.create_task(read(stream))
    await asyncio.sleep(0.2)
    reader.cancel()
    await asyncio.wait([reader])


async def leave_before_the_first_token(stream):
    reader = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])


AFTER_A_TOKEN = [leave_by_break, leave_by_close]
AT_ONCE = [leave_by_cancel, leave_before_the_first_token]
SHORT = [{}, {"n": 4}]
LONG = {"prompt": "x" * 4000}
"""Its first token is seconds away."""


@pytest.mark.parametrize(("leave", "fields"), [*product([*AFTER_A_TOKEN, *AT_ONCE], SHORT), *product(AT_ONCE, [LONG])])
async def test_b19_in_the_middle(tree, leave, fields):
    logged = len(tree.log)
    async with connected(tree) as client:
        await leave(client.generate(**{"prompt": "Hi"} | ENDLESS | fields))
        await until(lambda: load(tree) == (0, 0), 1)
    await asyncio.to_thread(tree.settled, 1)
    assert tree.log[logged:] == ""


async def test_b21_while_queued(tree):
    """Four others have all seats, and keep them."""
    async with connected(tree) as client:
        seated = client.generate("Hi", n=SEATS, **ENDLESS)
        await anext(seated)
        queued = [asyncio.create_task(read(client.generate([number], **ENDLESS))) for number in range(100)]
        await until(lambda: load(tree) == (SEATS, 100), 5)
        for task in queued:
            task.cancel()
        await until(lambda: load(tree) == (SEATS, 0), 1)
        assert (await anext(seated)).tokens
        await seated.aclose()
        await until(lambda: load(tree) == (0, 0), 1)
    await asyncio.to_thread(tree.settled)


async def test_b19_a_client_that_closes(tree):
    async with connected(tree) as client:
        streams = [client.generate([number], **ENDLESS) for number in range(SEATS)]
        await asyncio.gather(*map(anext, streams))
    await until(lambda: load(tree) == (0, 0), 1)


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_b19_b21_a_client_that_is_killed(tree, count, number):
    """Within two seconds nothing runs and nothing waits, and others never notice."""
    logged = len(tree.log)
    with process(tree, count) as client:
        client.send_signal(number)
        left = time.monotonic()
        until_now(lambda: load(tree) == (0, 0), 2)
        assert time.monotonic() - left < 2 * PATIENCE
    tree.settled(2)
    assert tree.log[logged:] == ""


def test_b19_one_of_two_clients_is_killed(tree):
    async def ask(client):
        return await read(client.generate([9], seed=9, max_tokens=150, ignore_eos=True))

    async def ask_beside():
        async with connected(tree) as client:
            asked = asyncio.create_task(ask(client))
            await asyncio.sleep(0.2)
            killed.kill()
            await until(lambda: sum(load(tree)) <= 1, 2)
            assert (await asked).ids == [null_model.generated([9], 150, seed=9, ends=())]

    with process(tree, 2) as killed:
        asyncio.run(ask_beside())
    tree.settled()


def test_b24_a_client_that_stands_still(tree):
    """Its requests cost no memory, others are as fast as before, and it misses nothing when it goes on."""
    frontend = tree.pid("frontend-0")
    with process(tree, 2) as still:
        before = tree.memory_kib(frontend)
        os.kill(still.pid, signal.SIGSTOP)

        async def ask():
            async with connected(tree) as client:
                began = time.monotonic()
                await read(client.generate([9], max_tokens=100, ignore_eos=True))
                return time.monotonic() - began

        assert asyncio.run(ask()) < 6 * PATIENCE
        assert sum(load(tree)) == 2
        assert tree.memory_kib(frontend) - before < 16 * 1024
        os.kill(still.pid, signal.SIGCONT)
        tree.sentinel()
        assert still.poll() is None
        still.kill()
        until_now(lambda: load(tree) == (0, 0), 2)


@pytest.mark.parametrize("count", [200])
async def test_b22_clients_that_come_and_go_leave_nothing(tree, count):
    """Each is a peer of the frontend, whose end nobody announces."""
    frontend = tree.pid("frontend-0")

    def descriptors():
        return len(list(Path(f"/proc/{frontend}/fd").iterdir()))

    before = descriptors()
    for number in range(count // 20):
        async with asyncio.TaskGroup() as group:
            for each in range(20):
                group.create_task(_come_and_go(tree, 20 * number + each))
    await until(lambda: descriptors() <= before + 2, 5)
    await asyncio.to_thread(tree.settled)


async def _come_and_go(tree, number):
    async with connected(tree) as client:
        async for _ in client.generate([number % 256], **ENDLESS):
            break
