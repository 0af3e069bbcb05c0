"""What a frontend shows of all actors' metrics: it asks the supervisor, who collects them."""

import asyncio
from collections.abc import Iterator

from actorlm.actors.membership import Membership
from actorlm.errors import Unavailable
from actorlm.messages.actor import MetricsCollected
from actorlm.messages.supervisor import ReadMetrics
from actorlm.metrics import render

TIMEOUT_S = 2.0


class Exposition:
    """The scrapes under way. `tokens` gives each a number."""

    def __init__(self, served_name: str, membership: Membership, tokens: Iterator[int]) -> None:
        self._served_name = served_name
        self._membership = membership
        self._tokens = tokens
        self._open: dict[int, asyncio.Future[bytes]] = {}

    async def read(self) -> bytes:
        """The metrics of all actors in Prometheus' text format. Raises Unavailable if the supervisor is silent."""
        token = next(self._tokens)
        future = self._open[token] = asyncio.get_running_loop().create_future()
        try:
            self._membership.say(ReadMetrics(token))
            return await asyncio.wait_for(future, TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the supervisor did not answer in time; try again later") from None
        finally:
            del self._open[token]

    def collected(self, message: MetricsCollected) -> None:
        """The supervisor answers, maybe too late."""
        future = self._open.get(message.token)
        if future is not None and not future.done():
            samples = ((sample.metric, sample.labels, sample.value) for sample in message.samples)
            future.set_result(render(samples, self._served_name))
