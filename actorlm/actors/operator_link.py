"""How an operator speaks to a supervisor: a link for one question or order, after whose last answer it is forgotten."""

import secrets
from typing import Any

from actorlm.errors import Unavailable
from actorlm.messages.catalog import INBOXES
from actorlm.runtime.events import LinkRefused
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.network import Network
from actorlm.topology import Role
from actorlm.wire import Message

MAILBOX_CAPACITY = 64


class OperatorLink:
    """Over `network`, to the supervisor at this address; ends with the network."""

    def __init__(self, network: Network, supervisor: str) -> None:
        self._mailbox: Mailbox[Any] = Mailbox(Role.OPERATOR, MAILBOX_CAPACITY, Overflow.PAUSE)
        self._link = network.connect(
            supervisor,
            peer=Role.SUPERVISOR,
            identity=this_process(Role.OPERATOR, f"{Role.OPERATOR}-{secrets.token_hex(4)}"),
            mailbox=self._mailbox,
            inbox=INBOXES[Role.OPERATOR],
        )

    @property
    def is_up(self) -> bool:
        """Whether there is a session."""
        return self._link.is_up

    def send(self, message: Message) -> None:
        """Says it now. Raises NotDelivered."""
        self._link.send(message)

    async def begin(self, message: Message) -> None:
        """Says it once there is a session. Raises Unavailable if that is refused."""
        while not self.is_up:
            await self.read()
        self.send(message)

    async def read(self) -> Message:
        """The next answer, or LinkUp for another session: answers of the one before may be lost.

        Raises Unavailable if that is refused.
        """
        message: Message
        [(_, message)] = await self._mailbox.drain(1)
        if isinstance(message, LinkRefused):
            raise Unavailable(message.reason)
        return message
