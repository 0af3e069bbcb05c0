"""Which lives of its peers an actor knows, so that news of a death is never taken for that of a successor."""

from actorlm.messages.actor import PeerLost
from actorlm.runtime.events import PeerJoined


class Roster:
    """Names and roles of the peers that have joined and were not lost, each with its incarnation."""

    def __init__(self) -> None:
        self._lives: dict[str, tuple[str, int]] = {}

    def joined(self, event: PeerJoined) -> bool:
        """Notes a peer; true if it was here before. Then what either side has said since may be lost."""
        before = self._lives.get(event.name)
        self._lives[event.name] = (event.role, event.incarnation)
        return before is not None

    def lost(self, message: PeerLost) -> bool:
        """Strikes a peer off; false if that life is not the one that is known here."""
        if self._lives.get(message.name, ("", -1))[1] != message.incarnation:
            return False
        del self._lives[message.name]
        return True

    def incarnation(self, name: str) -> int:
        """The incarnation of a peer, 0 if it is unknown."""
        return self._lives.get(name, ("", 0))[1]

    def of_role(self, role: str) -> list[str]:
        """The names of the peers of one role."""
        return [name for name, (found, _) in self._lives.items() if found == role]
