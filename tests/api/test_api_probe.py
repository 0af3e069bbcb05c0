"""The question that a frontend's HTTP server is asked from within."""

import asyncio
import socket

import pytest

from actorlm.api.probe import Probe
from actorlm.api.server import HttpServer


class _App:
    """Answers each request with a status once `may_answer` is set."""

    def __init__(self, status=200):
        self.status = status
        self.asked = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope, receive, send):
        self.asked.append((scope["method"], scope["path"]))
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def served():
    servers = []

    async def serve(app):
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = HttpServer(app, listening)
        servers.append(server)
        await server.start()
        return server

    yield serve
    for server in servers:
        await server.stop(0.1)


async def _after(probe, answered):
    async with asyncio.timeout(5):
        while probe.answered < answered:  # noqa: ASYNC110 - there is nothing to wait for but time
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("status", [200, 503])
async def test_an_answer_counts_whatever_it_says(served, status):
    app = _App(status)
    probe = Probe(await served(app))
    for number in range(3):
        duty = probe.duty()
        assert (duty.pending, duty.done) == (0, number)
        await _after(probe, number + 1)
    assert app.asked == [("HEAD", "/health")] * 3


async def test_a_server_that_does_not_answer_is_found_out(served):
    app = _App()
    app.may_answer.clear()
    probe = Probe(await served(app))
    probe.duty()
    for _ in range(3):
        await asyncio.sleep(0.02)
        duty = probe.duty()
        assert (duty.pending, duty.done) == (1, 0), "the loop turns, and nothing moves"
    assert len(app.asked) == 1, "one question is enough"
    app.may_answer.set()
    await _after(probe, 1)
    assert probe.duty().pending == 0


async def test_a_connection_that_was_closed_for_idleness_is_no_failure(served):
    app = _App()
    server = await served(app)
    probe = Probe(server)
    probe.duty()
    await _after(probe, 1)
    for connection in list(server._server.server_state.connections):
        connection.transport.close()
    await asyncio.sleep(0.02)
    probe.duty()
    await asyncio.sleep(0.02)
    assert probe.duty().pending == 0
    await _after(probe, 2)


async def test_nobody_asks_a_server_that_has_not_started_or_has_stopped(served):
    app = _App()
    unstarted = Probe(HttpServer(app, socket.socket()))
    assert unstarted.duty().pending == 0
    server = await served(app)
    await server.stop(0.1)
    probe = Probe(server)
    probe.duty()
    await asyncio.sleep(0.02)
    assert probe.duty().pending == 0
    assert app.asked == []


async def test_a_server_without_descriptors_is_overloaded_and_not_stuck(served, monkeypatch):
    probe = Probe(await served(_App()))

    def fail():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", fail)
    probe.duty()
    await asyncio.sleep(0.02)
    assert probe.duty().pending == 0
