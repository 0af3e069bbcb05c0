"""Collecting the metrics of all actors for one scrape."""

import asyncio
from collections.abc import Callable, Iterable
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

    def __init__(self, say: Callable[[str, Message], None]) -> None:
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
    dropped = sum(tally.dropped.total() for tally in (actor.tally, *tallies))
    counts = {"mailbox_depth": actor.mailbox.depth, "actor_messages": actor.processed, "bad_frames": dropped}
    return [MetricSample(metric, (actor.name,), value) for metric, value in counts.items()]
