"""The clients of a frontend: who is connected, and a task for each request that takes its text to its client.

Receives from clients what `messages.frontend.FromClients` lists, sends them what `messages/client.py` lists. Requests
are begun by `direct`, which does what HTTP's routes do. Must not know: HTTP, what a request holds.

A router never reports that a peer is gone, so each client is pinged: a Ping that finds no connection tells of a death
within BEAT_S. A client that is there and leaves MAX_UNANSWERED beats unanswered is dismissed. Beats are counted, not
time: a machine that was stopped and goes on dismisses nobody. Without requests there are few beats, without clients
none.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, assert_never

import structlog

from actorlm.actors.outbox import Outbox
from actorlm.api.ports import Begun, Direct
from actorlm.errors import ActorlmError, Interrupted, Overloaded, Poisoned, ProtocolError, Unavailable
from actorlm.messages.client import Dismissed, RequestCompleted, RequestFailed, Served
from actorlm.messages.frontend import Chat, Complete, FromClients, Pong, Withdraw
from actorlm.runtime.errors import NotDelivered, PeerUnknown
from actorlm.runtime.events import PeerJoined
from actorlm.runtime.network import Server
from actorlm.wire import Message, read_int64

BEAT_S = 0.5
IDLE_S = 5.0
"""Between beats while nobody asks for anything."""
MAX_UNANSWERED = 60
MAX_REQUESTS = 8192
"""Requests of one client that have begun; one more is refused with 429."""
SETTLE_S = 1.0

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Client:
    """One session of one client."""

    name: str
    outbox: Outbox
    requests: dict[int, asyncio.Task[None]] = field(default_factory=dict)


class Clients:
    """Everybody who has joined `server`. `spawn` runs a task for as long as the frontend lives."""

    def __init__(self, server: Server, direct: Direct, *, model: str, spawn: Spawn) -> None:
        self._server = server
        self._direct = direct
        self._model = model
        self._spawn = spawn
        self._here: dict[str, _Client] = {}
        self._retired = False
        self._news = asyncio.Event()
        """Somebody has joined, or asks for something."""

    def receive(self, sender: str, message: FromClients | PeerJoined) -> None:
        """Takes what a client says. Raises ProtocolError for what makes no sense, or comes too late."""
        if isinstance(message, PeerJoined):
            self._join(sender)
            return
        client = self._here.get(sender)
        if client is None:
            raise ProtocolError(f"{sender}, which is not here, says {type(message).__name__}")
        match message:
            case Complete() | Chat():
                self._begin(client, message)
            case Withdraw():
                for request in read_int64(message.requests):
                    if (task := client.requests.get(request)) is not None:
                        task.cancel()
            case Pong():
                client.outbox.pong(message.number)
            case _:
                assert_never(message)

    async def watch(self) -> None:
        """Pings all clients, for ever; drops who is gone, and dismisses who does not answer."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), IDLE_S if self._here else None)
            await asyncio.sleep(BEAT_S)
            for client in list(self._here.values()):
                if client.outbox.unanswered >= MAX_UNANSWERED:
                    self._dismiss(client.name, f"it leaves {MAX_UNANSWERED} pings unanswered")
                else:
                    client.outbox.beat()
            if not any(client.requests for client in self._here.values()):
                self._news.clear()

    def retire(self) -> None:
        """Nothing new begins, and what has begun goes on."""
        self._retired = True

    async def settle(self) -> None:
        """Waits a moment for requests that have ended to tell their clients."""
        if tasks := [task for client in self._here.values() for task in client.requests.values()]:
            await asyncio.wait(tasks, timeout=SETTLE_S)
            await asyncio.sleep(0)  # what they said last leaves in the turn after theirs

    def _join(self, name: str) -> None:
        """A client has a session, the first or a new one: what it had asked for in an earlier one is over."""
        self._drop(name)

        def send(message: Message) -> None:
            if self._here.get(name) is client:  # what is left of an earlier session is not for this one
                self._send(name, message)

        client = self._here[name] = _Client(name, Outbox(send))
        self._send(name, Served(self._model))
        self._news.set()

    def _begin(self, client: _Client, message: Complete | Chat) -> None:
        number = message.request
        if number in client.requests:
            raise ProtocolError(f"{client.name} has used the number {number} for a request that goes on")
        if self._retired:
            client.outbox.end(_failure(number, Unavailable("this frontend is restarting; try again later")))
            return
        if len(client.requests) >= MAX_REQUESTS:
            error = Overloaded(f"{MAX_REQUESTS} requests of this client are under way; try again later")
            client.outbox.end(_failure(number, error))
            return
        self._news.set()
        task = client.requests[number] = self._spawn(self._answer(client, message))
        task.add_done_callback(lambda _: client.requests.pop(number))

    async def _answer(self, client: _Client, message: Complete | Chat) -> None:
        """Takes one request from its beginning to its one end."""
        number, trace_id = message.request, f"{client.name}-{message.request}"
        try:
            begin = self._direct.complete if isinstance(message, Complete) else self._direct.chat
            begun = await begin(message.body, trace_id, message.session, message.replica, message.timeout_s)
            await _relay(begun, number, client.outbox)
        except ActorlmError as error:
            if isinstance(error, Interrupted | Poisoned):  # the operator is told too of what was accepted and is lost
                log.warning("request ended with an error", error=error.message, code=error.code)
            client.outbox.end(_failure(number, error))

    def _dismiss(self, name: str, reason: str) -> None:
        """Ends the session of a client that is there, and tells it for when it reads again."""
        log.warning("client dismissed", client=name, reason=reason)
        self._send(name, Dismissed(reason))
        self._drop(name)
        self._server.forget(name)

    def _send(self, name: str, message: Message) -> None:
        try:
            self._server.send(name, message)
        except PeerUnknown:
            self._drop(name)
            self._server.forget(name)
        except (NotDelivered, ProtocolError) as error:
            log.warning("client dropped", client=name, reason=error.message)
            self._drop(name)
            self._server.forget(name)

    def _drop(self, name: str) -> None:
        """Aborts all that a client has asked for."""
        client = self._here.pop(name, None)
        if client is not None:
            for task in list(client.requests.values()):
                task.cancel()


async def _relay(begun: Begun, number: int, outbox: Outbox) -> None:
    try:
        async for deltas in begun.generation:
            for delta in deltas:
                begun.tally.add(delta)
                outbox.add(number, delta)
            while not outbox.has_room:
                await outbox.progress()
                begun.generation.read_on()
    finally:
        begun.generation.abort()
    usage = begun.tally.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    outbox.end(RequestCompleted(number, usage.prompt_tokens, usage.completion_tokens, cached))


def _failure(number: int, error: ActorlmError) -> RequestFailed:
    return RequestFailed(number, error.status, error.code, error.message, error.param, error.retry_after)
