"""Streams, and kills while they run: the answers before, the kills one after another, the answers beside each other.

A killed process is looked at just before: what it was doing is what is logged, whatever the schedule wanted.
"""

import asyncio
import signal
import time
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx
from asking import address
from chaos_streams import Stream, difference
from chaos_tree import door_of, footprint, processes, states
from killing import kill
from tree import PATIENCE

from actorlm import Client

REPLICA_ROLES = ("engine", "worker")
FEW = 16
"""With fewer streams than this under way, those that have ended are asked again."""
SUSPICIOUS = 2
"""Deaths of its replica without a token in between that a request may see: one more may be counted as its fault."""
UNDER_WAY_S = 0.2
"""Time in which what has left a victim may still come."""
BACK_S = 60
"""Time for a victim to be ready again."""


class Killed(NamedTuple):
    """A line of the log. `doing` is what the victim did; `waiting` and `flowing` count the streams under way."""

    at_s: float
    victim: str
    pid: int
    kind: str
    planned: str
    doing: str
    waiting: int
    flowing: int

    def __str__(self):
        return (
            f"{self.at_s:7.2f} s  {self.kind:7} {self.victim:13} pid {self.pid:<7} in {self.doing:8}"
            f" (planned: {self.planned:7}); streams: {self.waiting} waiting, {self.flowing} flowing"
        )


class Chaos:
    """One tree under fire. `killed` is the log, `streams` are all that were asked meanwhile; begun by `under_fire`."""

    def __init__(self, tree, requests, ask):
        self.tree = tree
        self.requests = requests
        self.killed = []
        self.streams = []
        self.before = {}
        self.after = {}
        self._ask = ask
        self._door = door_of(tree)
        self._calm = {}
        self._began = time.monotonic()
        self._last_strike = 0.0
        self._dead = 0
        self._drains = False
        self._deaths = 0
        """Of replicas, since all streams last flowed."""

    # Streams.

    async def learn(self):
        """The undisturbed answers. A request with a stop string first shows what it says without one."""
        stopped = [one for one in self.requests if "stop" in one.fields]
        for one in stopped:
            one.fields["stop"] = None
        for stream in await self._read_all(stopped):
            stream.request.with_stop(stream.choices[0]["text"])
        self._calm = {stream.request.number: stream.answer for stream in await self._read_all(self.requests)}
        reasons = {choice["finish"] for answer in self._calm.values() for choice in answer["choices"].values()}
        assert reasons == {"length", "stop"}
        self.before = footprint(self.tree)

    async def _read_all(self, requests):
        streams = [Stream(one) for one in requests]
        await asyncio.gather(*map(self._ask, streams))
        assert not (broken := [f"{one.request}: {one.failure}" for one in streams if one.failure]), broken
        return streams

    @property
    def _active(self):
        return [one for one in self.streams if not one.ended]

    @property
    def _waiting(self):
        return [one for one in self._active if not one.flows_since(self._last_strike + UNDER_WAY_S)]

    # Kills.

    async def run(self, kills):
        """Kills as scheduled while streams run, then waits for the end of every stream."""
        async with asyncio.TaskGroup() as tasks:
            for one in kills:
                pid = await self._meet(one, tasks)
                while not await self._strike(one, pid):
                    pid = await self._meet(one._replace(delay_s=0.0), tasks)
        await self.whole()
        await asyncio.to_thread(self.tree.settled, 20)
        self.after = footprint(self.tree)

    async def beside(self, other):
        """All requests at once and something else with them; returns what came of that."""
        async with asyncio.TaskGroup() as tasks:
            await self._begin_streams(tasks)
            return await other

    async def drain(self, kills):
        """The same while the tree drains: nothing begins, and what has begun is finished before the tree ends."""
        async with asyncio.TaskGroup() as tasks:
            await self._begin_streams(tasks)
            self.tree.process.send_signal(signal.SIGTERM)
            await self._until(self._log, lambda log: "draining for up to" in log, "it drains")
            self._drains = True
            for one in kills:
                await self._strike(one, await self._until(self._ready, bool, f"{one.victim} is ready", one.victim))
                await asyncio.sleep(one.delay_s)

    async def _begin_streams(self, tasks):
        """Of all requests that are not under way; whole trees refuse nothing, and what is accepted is promised."""
        await self.whole()
        active = {one.request.number for one in self._active}
        fresh = [Stream(one) for one in self.requests if one.number not in active]
        before = await self._accepted()
        for stream in fresh:
            self.streams.append(stream)
            tasks.create_task(self._ask(stream))
        wanted = before + sum(one.request.choices for one in fresh)
        await self._until(self._accepted, lambda accepted: accepted >= wanted, f"{wanted} choices are accepted")

    async def _accepted(self):
        return await asyncio.to_thread(self.tree.total, "requests_accepted_total")

    async def _meet(self, one, tasks):
        """Waits for the moment of a kill; returns the pid."""
        if one.phase == "load" and len(self._active) >= FEW:
            pid = await self._until(self._successor, bool, f"{one.victim} starts again", one.victim)
        else:
            pid = await self._until(self._ready, bool, f"{one.victim} is ready", one.victim)
            if len(self._active) < FEW:
                await self._begin_streams(tasks)
            if one.phase == "decode" or self._is_risky(one.victim):
                await self._until(self._count_waiting, lambda count: not count, "all streams flow")
                self._deaths = 0
        await asyncio.sleep(one.delay_s)
        return pid

    def _is_risky(self, victim):
        """Whether its death may make a request look guilty, unless it has had a token."""
        return victim.startswith(REPLICA_ROLES) and self._deaths >= SUSPICIOUS

    async def _strike(self, one, pid):
        """Whether it was done: not where it meets no stream, would make one look guilty, or comes too late."""
        found = await self._until(states, bool, "the supervisor answers", self._door)
        is_ready = found.get(one.victim) == (pid, "ready")
        waiting, active = len(self._waiting), len(self._active)
        if not active or (is_ready and waiting and self._is_risky(one.victim)):
            return False
        try:
            kill(pid, one.kind)
        except ProcessLookupError:
            return False
        self._deaths += is_ready and one.victim.startswith(REPLICA_ROLES)
        self._dead, self._last_strike = pid, time.monotonic()
        doing = "load" if not is_ready else "decode" if not waiting else "prefill" if _serves(found) else "waiting"
        doing = "drain" if self._drains else doing
        at_s = self._last_strike - self._began
        self.killed.append(Killed(at_s, one.victim, pid, one.kind, one.phase, doing, waiting, active - waiting))
        return True

    async def _count_waiting(self):
        return len(self._waiting)

    async def _successor(self, victim):
        """The pid of the process that starts in the place of the one that was killed last."""
        pid = processes(self.tree).get(victim, 0)
        return pid if pid != self._dead else 0

    async def _ready(self, victim):
        pid, state = (await states(self._door)).get(victim, (0, ""))
        return pid if state == "ready" and processes(self.tree).get(victim) == pid else 0

    async def whole(self):
        """Until everybody is ready again, and the frontend knows."""
        await self._until(self._states, lambda found: found == {"ready"}, "all are ready")
        await self._until(self._status, lambda status: status == "ready", "the frontend is ready")

    async def _states(self):
        """Of all actors; those that are struck and not yet found dead count as such."""
        dead = {one.pid for one in self.killed}
        return {"dead" if pid in dead else state for pid, state in (await states(self._door)).values()}

    async def _status(self):
        return (await asyncio.to_thread(self.tree.client.get, "/ready")).json().get("status")

    async def _log(self):
        return self.tree.log

    async def _until(self, find, is_enough, what, *arguments):
        """Waits for a value and returns it."""
        deadline = time.monotonic() + BACK_S * PATIENCE
        while not is_enough(value := await find(*arguments)):
            assert time.monotonic() < deadline, f"not within {BACK_S} s: {what}\n{self}\n{self.tree.log[-4000:]}"
            await asyncio.sleep(0.02)
        return value

    # What came of it.

    def differences(self):
        """What is broken or differs from the undisturbed answers, in words."""
        words = {one: one.failure or difference(self._calm[one.request.number], one.answer) for one in self.streams}
        return [f"{one.request}: {said}" for one, said in words.items() if said]

    @property
    def met(self):
        """The kills that met a stream; others prove nothing."""
        return [one for one in self.killed if one.waiting + one.flowing]

    def __str__(self):
        return "\n".join(map(str, self.killed))


@asynccontextmanager
async def under_fire(tree, requests):
    """A Chaos with its connections to the tree, made before anything happens to it."""
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=tree.url, timeout=None, limits=limits) as http,
        Client(address(tree)) as client,
    ):
        yield Chaos(tree, requests, lambda stream: stream.read(tree, http, client))


def _serves(found):
    """Whether any replica is ready."""
    return any(name.startswith("engine") and state == "ready" for name, (_, state) in found.items())
