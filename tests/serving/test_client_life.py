"""What becomes of clients over ZeroMQ when parts of their tree die or end: a typed error soon, and then they go on."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time

import null_model
import pytest
from asking import ENDLESS, address, connected, read, until
from tree import ACTORLM, PATIENCE

from actorlm import Client
from actorlm.errors import Interrupted, ProtocolError, Unavailable
from actorlm.messages.catalog import INBOXES
from actorlm.messages.engine import Abort
from actorlm.runtime.fingerprint import fingerprint

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null", "--null-step-ms", 10)
EXPECTED = [null_model.generated([5], 10, seed=5, ends=())]


@pytest.fixture(scope="module")
def tree(tree_of):
    """It outlives all the deaths of this file."""
    return tree_of(*NULL, "--max-restarts", 1000)


async def begin(client, count=3):
    """Tasks that read endless requests, each of which has begun to answer."""
    streams = [client.generate([number], **ENDLESS) for number in range(count)]
    await asyncio.gather(*map(anext, streams))
    return [asyncio.create_task(read(stream)) for stream in streams]


async def ends(tasks, seconds=5):
    """The errors of all tasks."""
    async with asyncio.timeout(seconds * PATIENCE):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def ask_until_answered(client, seconds=10):
    """Asks again while parts restart; every refusal is typed."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        try:
            return (await read(client.generate([5], seed=5, max_tokens=10, ignore_eos=True))).ids
        except (Unavailable, Interrupted):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def test_a02_the_frontend_dies(tree):
    async with connected(tree) as client:
        for _ in range(2):
            running = await begin(client)
            tree.kill("frontend-0")
            for error in await ends(running):
                assert type(error) is Interrupted
                assert error.code == "interrupted"
                assert "frontend-0" in error.message
            assert await ask_until_answered(client) == EXPECTED
    await asyncio.to_thread(tree.settled)


@pytest.mark.parametrize("victim", ["balancer", "detokenizer-0", "engine-0"])
async def test_a_part_behind_the_frontend_dies(tree, victim):
    """Ids, text, log-probabilities and usage come out as if nothing had happened."""
    fields = {"max_tokens": 150, "ignore_eos": True, "n": 2, "logprobs": 2}
    async with connected(tree) as client:
        calm = [await read(client.generate([one], seed=one, **fields)) for one in range(3)]
        running = [asyncio.create_task(read(client.generate([one], seed=one, **fields))) for one in range(3)]
        await until(lambda: tree.total("num_requests_running") == 6, 5)
        tree.kill(victim)
        assert await ends(running, 20) == calm
    await asyncio.to_thread(tree.settled)


async def test_requests_wait_for_a_frontend_that_comes_back(tree):
    """Those that are made while it is away get an answer, or are told to try again; none hangs."""
    async with connected(tree) as client:
        tree.kill("frontend-0")
        asked = [asyncio.create_task(ask_until_answered(client)) for _ in range(50)]
        assert await ends(asked, 15) == [EXPECTED] * 50
    await asyncio.to_thread(tree.settled)


async def test_a_frontend_that_stands_still_and_goes_on(tree):
    async with connected(tree) as client:
        asked = asyncio.create_task(read(client.generate([5], seed=5, max_tokens=100, ignore_eos=True)))
        await asyncio.sleep(0.2)
        tree.kill("frontend-0", signal.SIGSTOP)
        await asyncio.sleep(1.5)
        tree.kill("frontend-0", signal.SIGCONT)
        assert (await asked).ids == [null_model.generated([5], 100, seed=5, ends=())]


class Forwarder:
    """A loopback port that leads to a frontend's socket, and can be cut or go silent."""

    def __init__(self, path):
        self._path = path
        self._writers = []
        self._flows = asyncio.Event()
        self._flows.set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"tcp://{host}:{port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()

    def cut(self):
        for writer in self._writers:
            writer.close()
        self._writers.clear()
        self._flows.set()

    def silence(self):
        self._flows.clear()

    async def _forward(self, reader, writer):
        there, back = await asyncio.open_unix_connection(self._path)
        self._writers += [writer, back]
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_over_tcp_on_this_machine(tree):
    async with Forwarder(address(tree).removeprefix("ipc://")) as way, Client(way.address) as client:
        assert await ask_until_answered(client) == EXPECTED
        for _ in range(3):
            running = await begin(client)
            way.cut()
            assert {type(error) for error in await ends(running)} == {Interrupted}
            assert await ask_until_answered(client) == EXPECTED
    await asyncio.to_thread(tree.settled, 2)


async def test_a_way_that_goes_silent(tree, monkeypatch):
    """Both sides give up: the client on the frontend, and the frontend on the client when its way is cut."""
    monkeypatch.setattr("actorlm.actors.client.SILENT_LOOKS", 10)
    async with Forwarder(address(tree).removeprefix("ipc://")) as way, Client(way.address) as client:
        running = await begin(client)
        way.silence()
        assert {error.message.partition(" has ")[2][:12] for error in await ends(running)} == {"said nothing"}
        way.cut()
        assert await ask_until_answered(client) == EXPECTED
        await until(lambda: tree.total("num_requests_running") == 0, 2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_a07_the_whole_tree_ends(start, number):
    tree = await asyncio.to_thread(start, *NULL)
    async with Client(address(tree), timeout_s=1.0) as client:
        running = await begin(client)
        await asyncio.to_thread(tree.stop, number)
        for error in await ends(running):
            assert type(error) in (Interrupted, Unavailable)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="does not answer"):
            await read(client.generate("x"))
        assert time.monotonic() - began < 2 * PATIENCE


async def test_a09_a_tree_that_drains(start):
    tree = await asyncio.to_thread(start, *NULL, "--null-step-ms", 10)
    async with Client(address(tree)) as client:
        stream = client.generate([5], seed=5, max_tokens=200, ignore_eos=True)
        first = await anext(stream)
        tree.process.send_signal(signal.SIGTERM)
        await until(lambda: "draining" in tree.log, 5)
        with pytest.raises(Unavailable, match="draining"):
            while True:  # until the frontend has been told
                await read(client.generate("x", max_tokens=1))
        assert len(first.token_ids) + len((await read(stream)).ids[0]) == 200
    assert await asyncio.to_thread(tree.wait) == 0


async def test_each_frontend_has_an_address(start, monkeypatch, home):
    """From its directory, one of a tree's frontends is found, whichever are there."""
    tree = await asyncio.to_thread(start, *NULL, "--frontends", 2)
    directory = address(tree).removeprefix("ipc://").removesuffix("/frontend-0")
    found = set()
    for _ in range(30):
        async with Client(directory) as client:
            found.add(client._actor._link.peer.rpartition("/")[2])
            assert (await read(client.generate([5], seed=5, max_tokens=10, ignore_eos=True))).ids == EXPECTED
    assert found == {"frontend-0", "frontend-1"}


def test_ps_shows_the_address(tree):
    environment = os.environ | {"COLUMNS": "220"}
    done = subprocess.run([ACTORLM, "ps"], env=environment, capture_output=True, text=True, check=True)
    assert f"clients  {address(tree)}\n" in done.stdout


async def test_another_version_is_refused_by_the_name_of_what_differs(tree, monkeypatch):
    other = fingerprint(INBOXES | {"balancer": Abort}, 1)
    monkeypatch.setattr("actorlm.client.protocol", lambda: other)
    with pytest.raises(ProtocolError, match="messages differ.*one version of actorlm"):
        async with connected(tree):
            pass


async def test_nobody_there(tmp_path):
    began = time.monotonic()
    with pytest.raises(Unavailable, match="does not answer"):
        async with Client(f"ipc://{tmp_path}/frontend-0", timeout_s=0.3):
            pass
    assert time.monotonic() - began < 2 * PATIENCE
