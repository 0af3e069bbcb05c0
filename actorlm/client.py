"""`actorlm.Client`: asks a running tree over ZeroMQ, without HTTP. Asynchronous; many requests share one connection.

    async with actorlm.Client() as client:
        async for delta in client.generate("Once upon a time", max_tokens=50):
            print(delta.text, end="")

Requests, limits and errors are those of HTTP: `/v1/completions` for `generate`, `/v1/chat/completions` for `chat`.
"""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from actorlm.actors.client import ClientActor
from actorlm.actors.reply import Reply
from actorlm.api.ports import Delta
from actorlm.client_address import frontend_address
from actorlm.errors import BadRequest, Unavailable
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.frontend import Chat, Complete
from actorlm.params import SamplingParams, checked
from actorlm.runtime.curve import Security
from actorlm.runtime.errors import MessageTooLarge
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.network import Network
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.topology import Role
from actorlm.wire import MAX_SESSION, Message

__all__ = ["Client", "Delta", "Stream", "Usage"]

HIGH_WATER = 16_384
"""Messages that may wait to be sent, and to be received."""
MAILBOX_CAPACITY = 1024
ALL_THE_ROOM = 2**31 - 1
"""A `max_tokens` that is cut to the room that the prompt leaves, as None is in SamplingParams."""

Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole request. A prompt counts once, however many choices are made from it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Client:
    """A connection to one frontend of a tree, for use with `async with`. It is made again whenever it is lost.

    `address` is an `ipc://` address as `actorlm ps` shows it, a `tcp://` one, or a tree's run directory; without it
    the only running tree of this user is meant. `keys` is a directory of keys with one of role client: a `tcp://`
    address then takes keys, which one beyond this machine must, unless it is `insecure`. `timeout_s` is how long
    entering, and each request, waits for a connection.
    """

    def __init__(
        self,
        address: str | Path | None = None,
        *,
        keys: str | Path | None = None,
        insecure: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        self._address = address
        self._keys = keys
        self._insecure = insecure
        self._timeout_s = timeout_s
        self._network: Network | None = None
        self._actor: ClientActor | None = None
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Connects. Raises Unavailable, ProtocolError if the server refuses this version or key, ConfigError."""
        address = frontend_address(self._address)
        security = Security.of(self._keys, Role.CLIENT, insecure=self._insecure)
        security.keys_for(address)  # before there is anything to close
        await self._connect(address, ZeroMQNetwork(protocol(), high_water=HIGH_WATER, security=security))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Withdraws what is under way and disconnects."""
        await self._disconnect()

    @property
    def model(self) -> str:
        """The name of the model that is served."""
        return self._connected.model

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        session: str = "",
        replica: int | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "Stream":
        """Continues a prompt: a text, token ids, or a list of either, whose choices then follow each other.

        `fields` are those of `/v1/completions`, and go before what `params` says. Nothing is sent before the stream is
        read. `session` and `replica` choose the replica as the headers X-Session-ID and X-data-parallel-rank do. After
        `timeout_s` seconds a request that goes on ends with DeadlineExceeded.
        """
        return self._stream(Complete, {"prompt": prompt}, params, fields, session, replica, timeout_s)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        session: str = "",
        replica: int | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> "Stream":
        """Answers a conversation; `messages` and `fields` are those of `/v1/chat/completions`. See `generate`."""
        return self._stream(Chat, {"messages": messages}, params, fields, session, replica, timeout_s)

    def _stream(
        self,
        kind: type[Complete] | type[Chat],
        about: Mapping[str, Any],
        params: SamplingParams | None,
        fields: Mapping[str, Any],
        session: str,
        replica: int | None,
        timeout_s: float | None,
    ) -> "Stream":
        actor = self._connected
        _check_placement(session, replica)
        seconds = _checked_timeout(timeout_s)
        chosen = _as_fields(params) if params is not None else {}
        body = _encode({"model": actor.model, **chosen, **fields, **about})
        return Stream(actor, lambda number: kind(number, body, session, replica, seconds))

    @property
    def _connected(self) -> ClientActor:
        if self._actor is None:
            raise Unavailable("this client is not connected; use it inside of `async with`")
        return self._actor

    async def _connect(self, address: str, network: Network) -> None:
        self._network = network
        name = f"{Role.CLIENT}-{os.getpid()}-{secrets.token_hex(4)}"
        mailbox: Mailbox[Any] = Mailbox(name, MAILBOX_CAPACITY, Overflow.PAUSE)
        try:
            link = network.connect(
                address,
                peer=f"the frontend at {address}",
                peer_role=Role.FRONTEND,
                identity=this_process(Role.CLIENT, name),
                mailbox=mailbox,
                inbox=INBOXES[Role.CLIENT],
            )
            self._actor = actor = ClientActor(mailbox, link, self._timeout_s)
            self._running = asyncio.get_running_loop().create_task(self._actor.run())
            self._running.add_done_callback(lambda _: actor.end())
            await self._actor.connected()
        except BaseException:
            await self._disconnect()
            raise

    async def _disconnect(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None and self._running is not None:
            actor.end()
            actor.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        if self._network is not None:
            await self._network.close()


class Stream:
    """The deltas of one request, as an asynchronous iterator. Leaving the loop that reads it aborts the request.

    That is: when nothing refers to the stream any more, when waiting for it is cancelled, or at `aclose`. A failure
    raises an error of `actorlm.errors`, the one that HTTP would answer; a request lost with its connection Interrupted.
    """

    def __init__(self, actor: ClientActor, make: Callable[[int], Message]) -> None:
        self._reply: Reply | None = None
        self._left = False
        self._actor = actor
        self._make = make
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """What is new of one choice."""
        if self._left:
            raise StopAsyncIteration
        try:
            if self._reply is None:
                self._reply = await self._ask()
            delta = await self._reply.take()
        except BaseException:
            self._leave()
            raise
        if delta is None:
            self._left = True
            raise StopAsyncIteration
        return delta

    async def aclose(self) -> None:
        """Aborts the request, if it has not ended."""
        self._leave()

    def __del__(self) -> None:
        if self._reply is not None and not self._left and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._actor.withdraw, self._reply)

    @property
    def usage(self) -> Usage | None:
        """What the request came to, after its last delta."""
        done = self._reply.completed if self._reply is not None else None
        return Usage(done.prompt_tokens, done.completion_tokens, done.cached_tokens) if done is not None else None

    async def _ask(self) -> Reply:
        try:
            return await self._actor.ask(self._make)
        except MessageTooLarge as error:
            raise BadRequest(f"the request is too large: {error.message}", code="request_too_large") from None

    def _leave(self) -> None:
        self._left = True
        if self._reply is not None:
            self._actor.withdraw(self._reply)


def _as_fields(params: SamplingParams) -> dict[str, Any]:
    """The parameters as the fields of a request, by the same names: everything that they say."""
    values = {
        name: value for name, value in msgspec.structs.asdict(checked(params, "params")).items() if value is not None
    }
    return {"max_tokens": ALL_THE_ROOM} | values


def _check_placement(session: object, replica: object) -> None:
    """The server checks values; what a message cannot even carry is refused here. Raises BadRequest."""
    if not isinstance(session, str) or not session.isascii() or len(session) > MAX_SESSION:
        raise BadRequest(
            f"session is {session!r:.200}; it must be 1 to {MAX_SESSION} visible ASCII characters", param="session"
        )
    is_number = isinstance(replica, int) and not isinstance(replica, bool) and 0 <= replica < 2**31
    if replica is not None and not is_number:
        raise BadRequest(f"replica is {replica!r}; it must be a replica's number, from 0 on", param="replica")


def _checked_timeout(seconds: object) -> float | None:
    """As above. Raises BadRequest."""
    if seconds is None:
        return None
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and abs(seconds) < 2**31:
        return float(seconds)
    raise BadRequest(f"timeout_s is {seconds!r:.200}; it must be a number of seconds", param="timeout_s")


def _encode(fields: Mapping[str, Any]) -> bytes:
    """The body of a request. Raises BadRequest for a value that has no form in JSON."""
    try:
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the request cannot be written as JSON: {error}") from None
