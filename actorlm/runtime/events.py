"""What ports tell their own actor, through its mailbox. Never sent over a wire."""

from actorlm.wire import Message


class PeerJoined(Message):
    """A peer has a session with our server now.

    Said again for a name whose session was lost in between: what was sent to it or by it before may be lost, so both
    sides say again what the other must know.
    """

    name: str
    role: str
    incarnation: int


class LinkUp(Message):
    """Our link to `peer` has a session now, the first or a new one: say again what the peer must know."""

    peer: str


class LinkRefused(Message):
    """`peer` refuses us, and asking again changes nothing."""

    peer: str
    reason: str


LinkEvent = PeerJoined | LinkUp | LinkRefused
