"""What can go wrong between two actors.

Two families. `NotDelivered`: a message did not leave, its sender still has it and decides what becomes of it.
`ProtocolError`: a peer sent what it must not send; ports count these, log the first of each kind, and go on.
"""

from actorlm.errors import ActorlmError, ProtocolError


class NotDelivered(ActorlmError):
    """The message did not leave; the caller still owns it."""


class NotConnected(NotDelivered):
    """The link has no session: the peer has not welcomed it yet, or is gone."""


class PeerUnknown(NotDelivered):
    """No peer of this name has a session here."""


class PeerFull(NotDelivered):
    """The queue towards the peer is at its bound."""


class MailboxFull(NotDelivered):
    """The mailbox is at its capacity."""


class BroadcastFull(NotDelivered):
    """A subscriber's queue is at its bound: it does not read, and the broadcast may not lose anything."""


class AddressUnusable(ActorlmError):
    """An address cannot be bound or connected to."""


class BadFrames(ProtocolError):
    """A message has too few or too many frames."""


class BadHeader(ProtocolError):
    """Frame 0 is no header."""


class BadBody(ProtocolError):
    """The body is no message of the inbox."""


class MessageTooLarge(ProtocolError):
    """The body is larger than the receiver accepts."""


class UnexpectedKind(ProtocolError):
    """A frame of this kind is never sent in this direction."""


class UnknownSession(ProtocolError):
    """The message belongs to a session that does not exist, or exists no longer."""


class HandshakeRefused(ProtocolError):
    """A peer that may not talk to this one introduced itself."""


class SequenceGap(ProtocolError):
    """Messages were lost: `expected` is the number that had to come, `got` the one that came."""

    def __init__(self, source: str, expected: int, got: int) -> None:
        super().__init__(f"messages of {source} were lost: number {expected} had to come, {got} came")
        self.expected = expected
        self.got = got


class WrongEpoch(ProtocolError):
    """A broadcast of another epoch than the subscriber's."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"a broadcast of epoch {got} arrived; this subscriber belongs to epoch {expected}")
        self.expected = expected
        self.got = got
