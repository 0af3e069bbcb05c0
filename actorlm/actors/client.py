"""The client's end of a connection to a frontend: asks, and gives each reply what has come for it.

Owns the replies under way. Receives from its frontend what `messages/client.py` lists. A session that ends takes what
was asked in it with it: those replies fail with Interrupted, and later requests wait for the next session. Must not
know: what is in a request.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import assert_never

from actorlm.actors.reply import Reply
from actorlm.api.ports import FINISH_REASONS, ID_BYTES, Delta
from actorlm.errors import ActorlmError, Interrupted, Overloaded, ProtocolError, Unavailable, from_wire
from actorlm.logprobs import unpack
from actorlm.messages.client import Dismissed, Inbox, Ping, RequestCompleted, RequestFailed, Served, TextGenerated
from actorlm.messages.frontend import Finish, Pong, Withdraw
from actorlm.runtime.actor import Actor
from actorlm.runtime.errors import NotConnected, NotDelivered
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Link
from actorlm.wire import Message, int64, read_int32, read_int64

LOOK_S = 0.1
"""How often the link is looked at while replies are awaited: over one that is lost they fail within so much time."""
QUIET_LOOKS = 30
"""A frontend that says nothing for so many looks may have forgotten us: it is spoken to, and then has us join again."""
SILENT_LOOKS = 200
"""One that says nothing for so many is given up. They are counted, because a client that did not run heard nothing."""
CLOSED = "this client is closed"


class ClientActor(Actor[Inbox | LinkEvent]):
    """One connection, made again whenever it is lost. `timeout_s` is how long a request waits for one."""

    def __init__(self, mailbox: Mailbox[Inbox | LinkEvent], link: Link, timeout_s: float) -> None:
        super().__init__(mailbox.name, mailbox)
        self._link = link
        self._timeout_s = timeout_s
        self._numbers = count(1)
        self._replies: dict[int, Reply] = {}
        self._decided = asyncio.Event()
        """Whether the frontend serves us or refuses us."""
        self._refusal = ""
        self._ended = False
        self._asked = asyncio.Event()
        self._read = 0
        self._quiet = 0
        self.model = ""
        """What is served."""
        self.spawn(self._look_after_link())

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The client's table of contents."""
        self._quiet = 0
        match message:
            case TextGenerated():
                self._feed(message)
            case RequestCompleted():
                if (reply := self._replies.pop(message.request, None)) is not None:
                    reply.complete(message)
            case RequestFailed():
                if (reply := self._replies.pop(message.request, None)) is not None:
                    reply.fail(_error(message))
            case Ping():
                self._answer_ping(message.number)
            case Served():
                self.model = message.model
                self._decided.set()
            case Dismissed():
                self._rejoin(message.reason)
            case LinkUp():
                self._begin_session()
            case LinkRefused():
                self._refusal = message.reason
                self._decided.set()
            case PeerJoined():
                raise ProtocolError(f"{sender} joined; nobody joins a client")
            case _:
                assert_never(message)

    async def connected(self) -> None:
        """Waits until requests can be sent. Raises Unavailable after `timeout_s`, ProtocolError if we are refused."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._decided.wait()
        except TimeoutError:
            raise Unavailable(f"{self._link.peer} does not answer, {self._timeout_s:g} s long") from None
        if self._ended:
            raise Unavailable(CLOSED)
        if self._refusal:
            raise ProtocolError(self._refusal)

    async def ask(self, make: Callable[[int], Message]) -> Reply:
        """Sends the request that `make` makes with its number. Raises as `connected` does, and Overloaded."""
        while True:
            await self.connected()
            number = next(self._numbers)
            try:
                self._link.send(make(number))
            except NotConnected:
                self._decided.clear()
                continue
            except NotDelivered as error:
                raise Overloaded(f"too many requests are on their way to the server: {error.message}") from None
            reply = self._replies[number] = Reply(number, self._link.welcome.session)
            self._asked.set()
            return reply

    def withdraw(self, reply: Reply) -> None:
        """Nobody wants more of this reply. Idempotent; also right after its end."""
        if self._replies.pop(reply.number, None) is not None:
            self._say(Withdraw(int64([reply.number])))

    def end(self) -> None:
        """Withdraws everything; who waits, or asks later, gets an error. Idempotent."""
        self._ended = True
        self._decided.set()
        if self._replies:
            self._say(Withdraw(int64(self._replies)))
        for reply in self._replies.values():
            reply.fail(Unavailable(CLOSED))
        self._replies.clear()

    def _feed(self, message: TextGenerated) -> None:
        choices, counts, cached = map(read_int32, (message.choices, message.counts, message.cached))
        scores = [None] * len(message.texts) if message.logprobs is None else unpack(message.logprobs)
        end = 0
        for row, request in enumerate(read_int64(message.requests)):
            begin, end = end, end + ID_BYTES * counts[row]
            reply = self._replies.get(request)
            if reply is not None:
                reason, ids = FINISH_REASONS.get(Finish(message.finishes[row])), message.tokens[begin:end]
                reply.feed(Delta(choices[row], message.texts[row], counts[row], reason, cached[row], ids, scores[row]))

    def _say(self, message: Message) -> None:
        """Sends what a lost session makes needless."""
        try:
            self._link.send(message)
        except NotDelivered:
            return

    def _rejoin(self, reason: str) -> None:
        """Our session is over: whatever is said in it has us join again, and until then nothing is asked."""
        self._decided.clear()
        self._lose_all(f"{self._link.peer} has dismissed this client: {reason}")
        self._say(Pong(self._read))

    def _answer_ping(self, number: int) -> None:
        self._read = number
        self._decided.set()
        self._say(Pong(number))

    async def _look_after_link(self) -> None:
        while True:
            await self._asked.wait()
            await asyncio.sleep(LOOK_S)
            self._look_at_link()
            if not self._replies:
                self._asked.clear()

    def _look_at_link(self) -> None:
        self._quiet += 1
        if not self._link.is_up:
            self._lose_all(f"the connection to {self._link.peer} was lost")
        elif self._quiet > SILENT_LOOKS:
            self._decided.clear()
            self._lose_all(f"{self._link.peer} has said nothing for {SILENT_LOOKS * LOOK_S:g} s")
        elif self._quiet > QUIET_LOOKS:
            self._say(Pong(self._read))

    def _begin_session(self) -> None:
        self._refusal, self._read = "", 0
        self._decided.clear()
        self._lose_all(f"{self._link.peer} has begun anew", keep=self._link.welcome.session)

    def _lose_all(self, cause: str, keep: int = 0) -> None:
        """All that was asked in other sessions than `keep` is lost."""
        for reply in [one for one in self._replies.values() if one.session != keep]:
            del self._replies[reply.number]
            reply.fail(Interrupted(f"{cause}, and this request with it; send it again"))


def _error(failed: RequestFailed) -> ActorlmError:
    return from_wire(failed.status, failed.code, failed.message, failed.param, failed.retry_after)
