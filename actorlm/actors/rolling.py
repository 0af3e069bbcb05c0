"""An operator's restart: one group after another, each ready again before the next one ends.

No stream breaks: a frontend finishes what it has before it ends, while others take the new connections, or a spare one
if it is the only one; what ends behind the frontends has its requests resumed by them.
"""

import asyncio
import contextlib
import difflib
import time
from collections.abc import Callable, Iterable, Mapping

from actorlm.actors.peers import Peers
from actorlm.errors import ActorlmError, BadRequest
from actorlm.messages.actor import Retire
from actorlm.runtime.children import Child, ChildState, OnDeath
from actorlm.runtime.supervision import Effect, EndChild, Supervision
from actorlm.topology import Role

ALL = "all"
ORDER = (Role.ENGINE, Role.DETOKENIZER, Role.BALANCER, Role.FRONTEND)
"""Of roles, when all restart. A worker's group is its engine's."""
POLL_S = 0.02

Tell = Callable[[str], None]
"""Tells the operator how far it is."""


class RestartFailed(ActorlmError):
    """Somebody did not come back, or was not there to begin with; what was not restarted yet is left as it is."""


class Rolling:
    """One restart at a time. `spare` gives who stands in for a frontend, by its name and how many spares there were."""

    def __init__(
        self,
        supervision: Supervision,
        peers: Peers,
        *,
        perform: Callable[[Iterable[Effect]], None],
        spare: Callable[[str, int], Child],
    ) -> None:
        self._supervision = supervision
        self._peers = peers
        self._perform = perform
        self._spare = spare
        self._spares = 0
        self._draining: dict[str, asyncio.Event] = {}

    def groups(self, what: str) -> list[str]:
        """The groups of an actor, a replica, or all. Raises BadRequest for any other name, and what cannot restart."""
        groups = self._named(what)
        for child in (child for group in groups for child in self._supervision.group(group)):
            if child.on_death is OnDeath.END_TREE:
                raise BadRequest(f"{child.name} was started by a launcher; restart the whole job there")
        return groups

    def _named(self, what: str) -> list[str]:
        children = [child for child in self._supervision.children.values() if not child.is_extra]
        if what == ALL:
            return [child.group for role in ORDER for child in children if child.role == role]
        names = {child.name: child.group for child in children}
        names |= {child.group.replace("engine-", "replica-"): child.group for child in children}
        if what not in names:
            near = difflib.get_close_matches(what, [*names, ALL], n=3) or sorted(names)
            raise BadRequest(f"{what} is no actor of this tree, and no replica; near are: {', '.join(near)}")
        return [names[what]]

    def has_drained(self, name: str) -> None:
        """A frontend has nothing left, or is gone."""
        if name in self._draining:
            self._draining[name].set()

    async def run(self, groups: Iterable[str], drain_s: float, tell: Tell) -> bool:
        """Restarts these groups; false if somebody had to be cut off after `drain_s`. Raises RestartFailed."""
        clean = True
        for group in groups:
            await self._others_ready(group, tell)
            members = ", ".join(child.name for child in self._supervision.group(group))
            tell(f"restarting {members}")
            began = time.monotonic()
            if self._supervision.group(group)[0].role == Role.FRONTEND:
                clean &= await self._restart_frontend(group, drain_s, tell)
            else:
                await self._restart(group)
            tell(f"{members} ready again after {time.monotonic() - began:.1f} s")
        return clean

    async def _restart(self, group: str) -> None:
        awaited = {child.name: child.incarnation + 1 for child in self._supervision.group(group)}
        self._perform(self._supervision.order(group, time.monotonic()))
        await _until(lambda: self._are_ready(awaited))

    async def _restart_frontend(self, group: str, drain_s: float, tell: Tell) -> bool:
        [frontend] = self._supervision.group(group)
        spare = None if self._has_another(frontend) else await self._begin_spare(frontend, tell)
        clean = await self._retire(frontend, drain_s, tell)
        try:
            await self._restart(group)
        except RestartFailed:
            await _until(lambda: frontend.state is ChildState.READY)  # or too many deaths end the tree
            await self._end_spare(spare, drain_s, tell)
            raise
        return await self._end_spare(spare, drain_s, tell) and clean

    def _has_another(self, frontend: Child) -> bool:
        return any(
            child.role == Role.FRONTEND
            and child.state is ChildState.READY
            and child.host == frontend.host  # where they share a socket
            and child is not frontend
            for child in self._supervision.children.values()
        )

    async def _begin_spare(self, frontend: Child, tell: Tell) -> Child:
        spare = self._spare(frontend.name, self._spares)
        self._spares += 1
        tell(f"{spare.name} stands in")
        self._perform(self._supervision.add(spare, time.monotonic()))
        await _until(lambda: self._are_ready({spare.name: spare.incarnation}))
        return spare

    async def _end_spare(self, spare: Child | None, drain_s: float, tell: Tell) -> bool:
        if spare is None:
            return True
        clean = await self._retire(spare, drain_s, tell)
        self._perform([EndChild(spare.name)])
        await _until(lambda: spare.name not in self._supervision.children)
        return clean

    async def _retire(self, frontend: Child, drain_s: float, tell: Tell) -> bool:
        """Lets a frontend finish; false if it did not within `drain_s`."""
        if frontend.state is not ChildState.READY:
            return True
        drained = self._draining[frontend.name] = asyncio.Event()
        self._peers.say(frontend.name, Retire(drain_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drained.wait(), drain_s)
        del self._draining[frontend.name]
        if not drained.is_set():
            tell(f"{frontend.name} has not finished within {drain_s:g} s; what was left ends with an error")
        return drained.is_set()

    async def _others_ready(self, group: str, tell: Tell) -> None:
        """Whoever is down already stays the only one: nobody is ended until all others are there."""

        def missing() -> list[str]:
            others = (child for child in self._supervision.children.values() if child.group != group)
            return [child.name for child in others if child.state is not ChildState.READY and not child.is_extra]

        if not missing():
            return
        tell(f"waiting for {', '.join(missing())}")
        limit_s = self._supervision.limits.start_timeout_s
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_until(lambda: not missing()), limit_s)
        if names := missing():
            raise RestartFailed(f"{', '.join(names)} not ready within {limit_s:g} s; {group} was not restarted")

    def _are_ready(self, awaited: Mapping[str, int]) -> bool:
        """Whether these incarnations are. Raises RestartFailed if one of them is gone already."""
        for name, incarnation in awaited.items():
            child = self._supervision.children.get(name)
            if child is None:
                raise RestartFailed(f"{name} did not get ready; nobody else was restarted for it")
            if child.incarnation > incarnation or (child.incarnation == incarnation and not child.alive):
                raise RestartFailed(f"{name} did not come back: {child.last_death}")
        return all(
            self._supervision.children[name].state is ChildState.READY
            and self._supervision.children[name].incarnation == incarnation
            for name, incarnation in awaited.items()
        )


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - conditions are about children, which change in one place
        await asyncio.sleep(POLL_S)
