"""Who has joined the supervisor, and how it speaks to them."""

from collections.abc import Callable, Container

from actorlm.actors.roster import Roster
from actorlm.messages.actor import PeerLost
from actorlm.runtime.errors import PeerFull, PeerUnknown
from actorlm.runtime.events import PeerJoined
from actorlm.runtime.network import Server
from actorlm.topology import Role
from actorlm.wire import Message


class Peers:
    """The sessions of `server`. `alive` has the names of the children whose processes exist.

    `stuck` is called with the name of a peer that does not read.
    """

    def __init__(self, server: Server, alive: Container[str], stuck: Callable[[str], None]) -> None:
        self._server = server
        self._alive = alive
        self._stuck = stuck
        self._roster = Roster()

    def joined(self, event: PeerJoined) -> None:
        """A child of the tree has a session."""
        self._roster.joined(event)

    def has(self, name: str) -> bool:
        """Whether somebody of this name has a session."""
        return name in self._server.peers

    @property
    def members(self) -> list[str]:
        """The children that can be spoken to."""
        return [name for name in self._server.peers if name in self._alive]

    @property
    def frontends(self) -> list[str]:
        """The frontends that can be spoken to."""
        members = set(self.members)
        return [name for name in self._roster.of_role(Role.FRONTEND) if name in members]

    def say(self, peer: str, message: Message) -> bool:
        """Sends to a peer, which may be gone; returns whether it left."""
        try:
            self._server.send(peer, message)
        except PeerUnknown:
            return False
        except PeerFull:
            self._stuck(peer)
            return False
        return True

    def announce_lost(self, name: str, role: str, excused: bool = False) -> None:
        """Tells all that a child is gone, and whether that is excused; and forgets it."""
        lost = PeerLost(name, role, self._roster.incarnation(name), excused)
        for member in self.members:
            self.say(member, lost)
        if self._roster.lost(lost):
            self._server.bury(name, lost.incarnation)

    def forget(self, name: str) -> None:
        """Ends a session whose end nobody announces."""
        self._server.forget(name)
