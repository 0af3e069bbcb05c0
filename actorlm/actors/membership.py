"""An actor's tie to its supervisor: readiness, phases, heartbeats, metrics. All but the supervisor hold one."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from actorlm.actors.scrape import resident_bytes, samples_of
from actorlm.messages.actor import MetricSample
from actorlm.messages.supervisor import ActorReady, Duty, Heartbeat, MetricsReported, PhaseChanged
from actorlm.metrics import Metrics
from actorlm.runtime.actor import Actor
from actorlm.runtime.errors import NotDelivered
from actorlm.runtime.network import Link, Network
from actorlm.runtime.pulse import Pulse
from actorlm.wire import Message

MAILBOX = "messages"
"""What every actor has to read."""


def _nothing() -> None:
    """Most actors have nothing more to do with their heartbeat."""


def _no_requests() -> tuple[int, int]:
    """Most actors have none of their own."""
    return 0, 0


class Membership:
    """Speaks for one actor to the supervisor over `link`. What is said before the link is up is said when it is."""

    def __init__(self, link: Link, metrics: Metrics, network: Network, pulse: Pulse) -> None:
        self._link = link
        self._network = network
        self._pulse = pulse
        self._early: list[Message] = []
        self._standing: list[Message] = []
        self._duties: list[Callable[[], Duty]] = []
        self._requests = _no_requests
        self.metrics = metrics

    def linked(self) -> None:
        """The link has come up, for the first time or again."""
        early, self._early = [*self._early, *self._standing], []
        for message in early:
            self.say(message)

    def ready(self, detail: str = "") -> None:
        """The actor can do its work."""
        self._standing = [ActorReady(detail)]
        if self._link.is_up:
            self.say(*self._standing)

    def phase(self, phase: str, done: int = 0, total: int = 0) -> None:
        """The actor begins a phase of its start, or has come so far in it (bytes)."""
        self.say(PhaseChanged(phase, done, total))

    def oblige(self, duty: Callable[[], Duty]) -> None:
        """Beside reading its mailbox the actor has this to do. It is asked at each heartbeat, and must keep up."""
        self._duties.append(duty)

    def count_requests(self, requests: Callable[[], tuple[int, int]]) -> None:
        """The actor has requests: how many run, and how many wait."""
        self._requests = requests

    def say(self, message: Message) -> None:
        """Sends a message to the supervisor, now or when the link comes up."""
        if self._link.is_up:
            self._link.send(message)
        else:
            self._early.append(message)

    async def beat(
        self, actor: Actor[Any], also: Callable[[], None] = _nothing, doing: Callable[[], str] = str
    ) -> None:
        """Sends heartbeats for ever, which say what it is `doing`, and does `also` with each.

        One that cannot leave is left out.
        """
        while True:
            await asyncio.sleep(self._pulse.until_beat(time.monotonic()))
            with contextlib.suppress(NotDelivered):
                self._link.send(self.heartbeat(actor, doing()))
            also()

    def heartbeat(self, actor: Actor[Any], doing: str = "") -> Heartbeat:
        """What there is to say of the actor now."""
        depth = actor.mailbox.depth
        duties = (Duty(MAILBOX, depth, actor.processed), *(duty() for duty in self._duties))
        return Heartbeat(depth, doing, duties, *self._requests(), resident_bytes() >> 20)

    def report(self, token: int, actor: Actor[Any]) -> None:
        """Answers CollectMetrics with the actor's own metrics and those that every actor has."""
        own = [MetricSample(*sample) for sample in self.metrics.samples()]
        self.say(MetricsReported(token, (*own, *samples_of(actor, self._network.tallies))))
