"""An engine's way to one detokenizer, and what may have been lost on it.

A session is counted as open from the moment at which the engine has looked at what the one before may have lost: so no
token of a request goes through one session after another one has lost some. Within a session a loss shows when the next
message comes, so one is sent behind the last tokens, too.
"""

from collections import deque

from actorlm.messages.detokenizer import TokensSampled
from actorlm.runtime.errors import NotConnected
from actorlm.runtime.network import Link, Pusher

MAX_ENDED = 16_384
"""Requests that are remembered after their last token was pushed."""


class TextPort:
    """Over `link`. `ended` are the requests, each with its attempt, whose last tokens went through this session."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._pusher: Pusher | None = None
        self._session = 0
        self._is_unconfirmed = False
        self.ended: deque[tuple[int, int]] = deque(maxlen=MAX_ENDED)

    @property
    def peer(self) -> str:
        """The detokenizer's name."""
        return self._link.peer

    @property
    def was_opened(self) -> bool:
        """Whether there has been a session."""
        return self._pusher is not None

    @property
    def is_open(self) -> bool:
        """Whether tokens that are pushed now arrive, as far as is known."""
        return self._link.is_up and self._link.welcome.session == self._session

    def open(self) -> None:
        """Counts the link's session as open; what was pushed in another one is nobody's business any more."""
        self._session = self._link.welcome.session
        self._pusher = self._link.pusher("tokens")
        self.ended.clear()

    def push(self, message: TokensSampled) -> None:
        """Raises NotConnected unless the port is open, PeerFull at the bound."""
        if self._pusher is None or not self.is_open:
            raise NotConnected(f"no session with {self.peer} is open")
        self._pusher.send(message)
        self._is_unconfirmed = bool(message.requests)

    def confirm(self, nothing: TokensSampled) -> None:
        """Sends a message without tokens, if tokens were the last that was pushed: without them it cannot be missed."""
        if self._is_unconfirmed and self.is_open:
            self.push(nothing)
