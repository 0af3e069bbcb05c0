"""Collecting the metrics of all actors for one scrape."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from actorlm.messages.actor import CollectMetrics, MetricSample, MetricsCollected
from actorlm.messages.supervisor import MetricsReported
from actorlm.runtime.actor import Actor
from actorlm.runtime.tally import Tally
from actorlm.wire import Message

PATIENCE_S = 1.0
"""An actor that has not answered by then is left out of the scrape."""


class Scrapes:
    """The scrapes under way, by the token that the asking frontend chose."""

    def __init__(self, say: Callable[[str, Message], object]) -> None:
        self._say = say
        self._open: dict[int, tuple[str, set[str], list[MetricSample]]] = {}

    def begin(self, asker: str, token: int, members: Iterable[str], own: Iterable[MetricSample]) -> None:
        """Asks every member; answers the asker with `own` and theirs when all have reported, or when patience ends."""
        awaited = set(members)
        self._open[token] = (asker, awaited, list(own))
        for member in awaited:
            self._say(member, CollectMetrics(token))
        asyncio.get_running_loop().call_later(PATIENCE_S, self._close, token)

    def reported(self, sender: str, message: MetricsReported) -> None:
        """A member has answered."""
        scrape = self._open.get(message.token)
        if scrape is None:
            return
        _, awaited, samples = scrape
        if sender not in awaited:
            return
        awaited.remove(sender)
        samples += message.samples
        if not awaited:
            self._close(message.token)

    def _close(self, token: int) -> None:
        scrape = self._open.pop(token, None)
        if scrape is not None:
            asker, _, samples = scrape
            self._say(asker, MetricsCollected(token, tuple(samples)))


def samples_of(actor: Actor[Any], tallies: Iterable[Tally]) -> list[MetricSample]:
    """The metrics that every actor has; `tallies` are those of its sockets."""
    sockets = tuple(tallies)
    counts = {
        "mailbox_depth": actor.mailbox.depth,
        "mailbox_high_water": actor.mailbox.high_water,
        "mailbox_capacity": actor.mailbox.capacity,
        "actor_messages": actor.processed,
        "bad_frames": sum(tally.dropped.total() for tally in (actor.tally, *sockets)),
        "connections_refused": sum(tally.refused for tally in sockets),
        **_process(),
    }
    own = [MetricSample(metric, (actor.name,), value) for metric, value in counts.items()]
    return [*own, *_messages(actor.name, sockets)]


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _process() -> dict[str, float]:
    """What this process takes of its machine."""
    return {
        "actor_memory_bytes": resident_bytes(),
        "actor_open_fds": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "actor_cpu_seconds": time.process_time(),
    }


def _messages(actor: str, tallies: Iterable[Tally]) -> Iterator[MetricSample]:
    """Sockets are named without the directory of this run, so that a series goes on after a restart."""
    total: Counter[tuple[str, str]] = Counter()
    for tally in tallies:
        kind, _, address = tally.socket.partition(" ")
        name = f"{kind} {address.rpartition('/')[2]}"
        total[name, "sent"] += tally.sent
        total[name, "received"] += tally.received
    return (MetricSample("socket_messages", (actor, *key), value) for key, value in total.items())
