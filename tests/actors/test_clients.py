"""Clients and a frontend over the in-memory network: requests, their ends, and clients that vanish or do not read."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from actorlm.actors import client as client_module
from actorlm.actors import clients as clients_module
from actorlm.actors.backend import ServingBackend
from actorlm.actors.clients import Clients
from actorlm.actors.outbox import WINDOW
from actorlm.api.direct import DirectRequests
from actorlm.client import Client, Usage
from actorlm.errors import BadRequest, ContextLengthExceeded, Interrupted, NotFound, Overloaded, Unavailable
from actorlm.messages.actor import Drain, Retire, Stop, TreeState
from actorlm.messages.catalog import protocol
from actorlm.messages.frontend import Complete, FromClients, Pong, Withdraw
from actorlm.params import SamplingParams
from actorlm.runtime.identity import this_process
from actorlm.runtime.memory import MemoryNetwork
from actorlm.text.chat_template import load_chat_template
from actorlm.text.tokenizer import load_tokenizer
from actorlm.wire import int64

ADDRESS = "memory://frontend-0"
ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


def open_to_clients(tree):
    """Gives the tree's frontend what `launch` gives it."""
    _, network = tree.tasks["frontend-0"]
    frontend = tree.frontend
    server = network.serve(
        ADDRESS,
        identity=this_process("frontend", "frontend-0"),
        mailbox=frontend.mailbox,
        inbox=FromClients,
        admits=("client",),
    )
    backend = ServingBackend(frontend, tree.model, load_tokenizer(tree.model), load_chat_template(tree.model), 16)
    tree.clients = Clients(server, DirectRequests(backend), model="null", spawn=frontend.spawn)
    frontend.admit(tree.clients)


@pytest.fixture
def client_tree(memory_tree):
    @asynccontextmanager
    async def start(**options):
        async with memory_tree(**options) as tree:
            open_to_clients(tree)
            yield tree

    return start


@asynccontextmanager
async def connected(tree, timeout_s=2.0):
    client = Client(timeout_s=timeout_s)
    await client._connect(ADDRESS, MemoryNetwork(protocol(), tree.exchange))
    try:
        yield client
    finally:
        await client._disconnect()


async def read(stream, until=None, begun=None):
    """(ids, texts, finishes) of all choices, by index, behind what was read already; or until so many tokens came."""
    ids, texts, finishes = begun or ({}, {}, {})
    async for delta in stream:
        assert delta.choice not in finishes, "a choice goes on after its end"
        assert delta.tokens == len(delta.token_ids)
        ids[delta.choice] = ids.get(delta.choice, ()) + delta.token_ids
        texts[delta.choice] = texts.get(delta.choice, "") + delta.text
        if delta.finish:
            finishes[delta.choice] = delta.finish
        if until is not None and sum(map(len, ids.values())) >= until:
            break
    return ids, texts, finishes


async def test_a_request_from_its_prompt_to_its_usage(client_tree):
    async with client_tree() as tree, connected(tree) as client:
        assert client.model == "null"
        stream = client.generate([65, 66], SamplingParams(max_tokens=6, seed=3), ignore_eos=True, n=2)
        assert stream.usage is None
        ids, _, finishes = await read(stream)
        assert [len(ids[choice]) for choice in (0, 1)] == [6, 6]
        assert ids[0] != ids[1]
        assert finishes == {0: "length", 1: "length"}
        assert stream.usage == Usage(prompt_tokens=2, completion_tokens=12, cached_tokens=0)
        await tree.settled()


async def test_a_conversation_goes_through_the_template(client_tree):
    async with client_tree() as tree, connected(tree) as client:
        stream = client.chat([{"role": "user", "content": "Hi"}], max_tokens=3, ignore_eos=True, temperature=0)
        ids, _, _ = await read(stream)
        assert len(ids[0]) == 3
        assert stream.usage.prompt_tokens > 10


async def test_many_at_once_get_what_each_gets_alone(client_tree):
    async with client_tree(step_ms=1) as tree, connected(tree) as client:

        def ask(number):
            return read(client.generate([number], max_tokens=20, seed=number, ignore_eos=True))

        together = await asyncio.gather(*map(ask, range(50)))
        assert [await ask(number) for number in range(50)] == together
        await tree.settled()


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"temperature": 7}, BadRequest, "temperature"),
        ({"tempertaure": 1}, BadRequest, "tempertaure"),
        ({"max_tokens": "5"}, BadRequest, "max_tokens"),
        ({"prompt": [999_999]}, BadRequest, "prompt"),
        ({"prompt": []}, BadRequest, "prompt"),
        ({"prompt": "\ud800"}, BadRequest, None),
        ({"prompt": [1] * 9000}, ContextLengthExceeded, "prompt"),
        ({"model": "other"}, NotFound, "model"),
        ({"stream": True}, BadRequest, "stream"),
        ({"echo": True}, BadRequest, "echo"),
        ({"n": 17}, BadRequest, "n"),
        ({"params": SamplingParams(temperature=7)}, BadRequest, "temperature"),
        ({"params": 5}, BadRequest, "params"),
        ({"temperature": float("nan")}, BadRequest, None),
        ({"stop": {1, 2}}, BadRequest, None),
    ],
)
async def test_c04_a_wrong_field_is_the_error_that_http_answers(client_tree, fields, kind, param):
    async with client_tree() as tree, connected(tree) as client:
        with pytest.raises(kind) as caught:
            await read(client.generate(**{"prompt": "x"} | fields))
        assert type(caught.value) is kind
        assert caught.value.param == param
        await read(client.generate("x", max_tokens=2))


async def test_an_engines_refusal_reaches_its_client(client_tree):
    scheduler = {"max_waiting": 1, "max_num_seqs": 1}
    async with client_tree(step_ms=5, scheduler=scheduler) as tree, connected(tree) as client:
        with pytest.raises(Overloaded, match="max_waiting") as caught:
            await read(client.generate([1], n=10, max_tokens=100))
        assert caught.value.code == "overloaded"
        await tree.settled()


async def leave_by_break(stream):
    async for _ in stream:
        break


async def leave_by_close(stream):
    await anext(stream)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def leave_by_cancel(stream):
    await anext(stream)
    reader = asyncio.ensure_future(read(stream))
    await asyncio.sleep(0.02)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert reader.cancelled()


async def leave_by_timeout(stream):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await read(stream)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_close, leave_by_cancel, leave_by_timeout])
async def test_b19_leaving_aborts(client_tree, leave):
    async with client_tree(step_ms=5) as tree, connected(tree) as client:
        kept = client.generate([7], max_tokens=60, ignore_eos=True)
        await anext(kept)
        await leave(client.generate([1], n=2, **ENDLESS))
        await tree.until(lambda: len(tree.frontend._open) == 1, 1)
        await read(kept)
        assert kept.usage.completion_tokens == 60
        await tree.settled()


async def test_b19_closing_the_client_aborts_and_tells_who_waits(client_tree):
    async with client_tree(step_ms=5) as tree:
        async with connected(tree) as client:
            stream = client.generate([1], **ENDLESS)
            await anext(stream)
            reader = asyncio.ensure_future(read(stream))
            await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="closed"):
            await reader
        with pytest.raises(Unavailable, match="async with"):
            client.generate("x")
        await tree.settled()


async def test_a_client_that_vanishes_is_missed_at_the_next_beat(client_tree, monkeypatch):
    monkeypatch.setattr(clients_module, "BEAT_S", 0.02)
    async with client_tree(step_ms=5) as tree:
        async with connected(tree) as witness:
            kept = witness.generate([7], max_tokens=50, ignore_eos=True)
            await anext(kept)
            vanishing = Client()
            await vanishing._connect(ADDRESS, MemoryNetwork(protocol(), tree.exchange))
            streams = [vanishing.generate([number], **ENDLESS) for number in range(3)]
            await asyncio.gather(*map(anext, streams))
            vanishing._running.cancel()
            vanishing._actor._link._dealer.close(0)
            await tree.until(lambda: len(tree.frontend._open) == 1, 2)
            assert len(tree.clients._here) == 1
            await read(kept)
        await tree.settled()


class Deaf:
    """A client that stops to read, and goes on when it is told to."""

    def __init__(self, client):
        self._actor = client._actor
        self._receive = self._actor.receive
        self._kept = []
        self._actor.receive = lambda sender, message: self._kept.append((sender, message))

    def read_again(self):
        self._actor.receive = self._receive
        for sender, message in self._kept:
            self._receive(sender, message)


async def test_b24_a_client_that_does_not_read_is_dismissed_by_name(client_tree, monkeypatch):
    monkeypatch.setattr(clients_module, "BEAT_S", 0.02)
    monkeypatch.setattr(clients_module, "MAX_UNANSWERED", 10)
    async with client_tree(step_ms=1) as tree, connected(tree) as good, connected(tree) as bad:
        stream, beside = bad.generate([1], **ENDLESS), good.generate([2], max_tokens=300, ignore_eos=True)
        await anext(stream)
        deaf = Deaf(bad)
        assert len((await read(beside))[0][0]) == 300
        await tree.until(lambda: len(tree.clients._here) == 1, 5)
        assert not tree.frontend._open
        deaf.read_again()
        with pytest.raises(Interrupted, match="pings unanswered"):
            await read(stream)
        await read(bad.generate([3], max_tokens=4))  # it has joined again
        await tree.settled()


async def test_b24_what_a_client_does_not_read_is_bounded_and_kept(client_tree):
    """Deltas wait in the generation, merged; when the client reads again it gets all of them."""
    count = WINDOW + 1500
    async with client_tree(kv_tokens=8192) as tree, connected(tree) as client:
        expected = await read(client.generate([1], seed=1, max_tokens=count, ignore_eos=True))
        stream = client.generate([1], seed=1, max_tokens=count, ignore_eos=True)
        first = await anext(stream)
        deaf = Deaf(client)
        await tree.until(lambda: not tree.frontend._open, 10)
        assert len(deaf._kept) < WINDOW + 50
        deaf.read_again()
        ids, _, finishes = await read(stream)
        assert (first.token_ids + ids[0], finishes) == (expected[0][0], expected[2])


@pytest.mark.parametrize("victim", ["engine-0", "balancer", "detokenizer-0"])
async def test_a_stream_goes_on_whatever_dies_behind_the_frontend(client_tree, victim):
    async with client_tree(step_ms=2) as tree, connected(tree) as client:
        calm = await read(client.generate([1], max_tokens=60, ignore_eos=True, seed=3, logprobs=1))
        stream = client.generate([1], max_tokens=60, ignore_eos=True, seed=3, logprobs=1)
        begun = await read(stream, until=10)
        await tree.restart(victim)
        assert await read(stream, begun=begun) == calm


async def test_a02_the_frontends_death_ends_requests_and_its_successor_takes_new_ones(client_tree):
    async with client_tree(step_ms=5) as tree, connected(tree) as client:
        stream = client.generate([1], **ENDLESS)
        await anext(stream)
        await tree.kill("frontend-0")
        with pytest.raises(Interrupted, match="lost"):
            await read(stream)
        waiting = asyncio.ensure_future(read(client.generate([2], max_tokens=5, ignore_eos=True)))
        await asyncio.sleep(0.05)
        tree.frontend = tree.begin("frontend-0")
        open_to_clients(tree)
        tree.frontend.serve(tree._stop_http)
        with pytest.raises(Unavailable, match="try again"):
            await waiting  # at once: its successor is not ready yet
        await tree.until(lambda: tree.frontend._attempts.reach_all_roles)
        tree.frontend._tree = TreeState.READY
        assert len((await read(client.generate([2], max_tokens=5, ignore_eos=True)))[0][0]) == 5


async def test_without_a_frontend_requests_wait_for_a_bounded_time(client_tree):
    async with client_tree(step_ms=5) as tree, connected(tree, timeout_s=0.2) as client:
        await tree.kill("frontend-0")
        with pytest.raises(Unavailable, match="does not answer"):
            await read(client.generate([1]))


async def test_a09_drain_refuses_new_requests_and_finishes_old_ones(client_tree):
    async with client_tree(step_ms=5) as tree, connected(tree) as client:
        stream = client.generate([1], max_tokens=20, ignore_eos=True)
        await anext(stream)
        tree.say("frontend-0", Drain(30.0))
        await tree.until(lambda: tree.frontend.state is TreeState.DRAINING)
        with pytest.raises(Unavailable, match="draining"):
            await read(client.generate([2]))
        await read(stream)
        assert stream.usage.completion_tokens == 20


async def test_a_frontend_that_retires_refuses_new_requests_and_finishes_old_ones(client_tree):
    async with client_tree(step_ms=5) as tree, connected(tree) as client:
        stream = client.generate([1], max_tokens=20, ignore_eos=True)
        await anext(stream)
        tree.say("frontend-0", Retire(30.0))
        await tree.until(lambda: tree.frontend.state is TreeState.DRAINING)
        with pytest.raises(Unavailable, match="this frontend is restarting; try again later"):
            await read(client.generate([2]))
        await read(stream)
        assert stream.usage.completion_tokens == 20


async def test_a07_stop_tells_clients(client_tree):
    async with client_tree(step_ms=5) as tree, connected(tree) as client:
        stream = client.generate([1], **ENDLESS)
        await anext(stream)
        tree.say("frontend-0", Stop())
        with pytest.raises(Unavailable, match="shutting down"):
            await read(stream)


async def test_a_frontend_that_forgot_a_client_is_found_out(client_tree, monkeypatch):
    monkeypatch.setattr(client_module, "QUIET_LOOKS", 2)
    monkeypatch.setattr(clients_module, "BEAT_S", 1000.0)
    async with client_tree(step_ms=5) as tree, connected(tree) as client:
        stream = client.generate([1], **ENDLESS)
        await anext(stream)
        [name] = tree.clients._here
        tree.clients._drop(name)
        tree.clients._server.forget(name)
        with pytest.raises(Interrupted, match="begun anew"):
            await asyncio.wait_for(read(stream), 5)
        await read(client.generate([1], max_tokens=2))


async def test_a_frontend_that_says_nothing_is_given_up(client_tree, monkeypatch):
    monkeypatch.setattr(client_module, "SILENT_LOOKS", 3)
    monkeypatch.setattr(clients_module, "BEAT_S", 1.5)
    async with client_tree(step_ms=1500) as tree, connected(tree) as client:
        with pytest.raises(Interrupted, match="has said nothing"):
            await asyncio.wait_for(read(client.generate([1], max_tokens=2)), 5)
        stream = client.generate([1], max_tokens=1)
        await tree.until(client._actor._decided.is_set)  # it was only slow
        monkeypatch.setattr(client_module, "SILENT_LOOKS", 1000)
        assert (await anext(stream)).finish == "length"


async def test_e04_what_makes_no_sense_is_dropped(client_tree):
    async with client_tree(step_ms=5) as tree, connected(tree) as client:
        stream = client.generate([1], **ENDLESS)
        await anext(stream)
        dropped = tree.frontend.tally.dropped
        [number] = client._actor._replies
        for message in (Complete(number, b"{}"), Pong(2**63 - 1), Withdraw(int64([-1, 5, 2**63 - 1]))):
            client._actor._say(message)
        await tree.until(lambda: dropped["ProtocolError"] == 2)
        for body in (b"", b"null", b"\xff", b"[" * 100_000, b'{"model": 5}'):
            client._actor._say(Complete(2**63 - 1, body))
            await tree.until(lambda: next(iter(tree.clients._here.values())).requests.keys() == {number})
        assert (await anext(stream)).token_ids
        assert len(tree.frontend._open) == 1
