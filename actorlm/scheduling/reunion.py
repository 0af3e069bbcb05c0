"""Who works on what, found again after a balancer or a connection to it was lost: two sides tell, and are compared.

Frontends claim what they have with engines, engines say what they hold. Owns: the claims that no engine has confirmed,
until every engine that may hold them has spoken. Must not know: how they travel, which replica is the better one.
"""

from collections.abc import Iterable

from actorlm.requests import frontend_of

Attempt = tuple[int, int]
"""A request and the number of its attempt."""


class Reunion:
    """Begins with nobody known: whoever has not spoken may hold, or claim, anything."""

    def __init__(self) -> None:
        self._claims: dict[int, int] = {}
        self._frontends: set[str] = set()
        self._awaited: set[str] = set()
        self._is_counted = False

    def expect(self, engines: Iterable[str]) -> None:
        """These engines live and have yet to say what they hold. Without a first call nothing is ever unheld."""
        self._awaited.update(engines)
        self._is_counted = True

    def engine_spoke(self, engine: str) -> None:
        """All that it holds has been given to `holds`; or it is gone and holds nothing."""
        self._awaited.discard(engine)

    def frontend_left(self, frontend: str) -> None:
        """What it has is unknown until it speaks again."""
        self._frontends.discard(frontend)
        self._claims = {request: one for request, one in self._claims.items() if frontend_of(request) != frontend}

    def frontend_spoke(self, frontend: str) -> None:
        """All that it has and that is at no engine has been given to `claim`."""
        self._frontends.add(frontend)

    def claim(self, attempts: Iterable[Attempt]) -> None:
        """These are wanted, and may be at an engine that has not spoken."""
        self._claims.update(attempts)

    def holds(self, attempt: Attempt) -> bool:
        """An engine holds this. Whether it may go on: it was claimed, or its frontend has yet to speak."""
        request, number = attempt
        if self._claims.get(request) == number:
            del self._claims[request]
            return True
        return request not in self._claims and frontend_of(request) not in self._frontends

    def ended(self, request: int) -> None:
        """The request is claimed no more: an engine has ended it, or its frontend has."""
        self._claims.pop(request, None)

    def unheld(self) -> list[Attempt]:
        """What is claimed and held by no engine, once all have spoken. It is forgotten here."""
        if self._awaited or not self._is_counted:
            return []
        unheld, self._claims = list(self._claims.items()), {}
        return unheld
