"""What an operator of HTTP asks of the supervisor: as an operator of its own, not in the name of the frontend.

Each question has a link of its own, as a command at the terminal has: the supervisor forgets operators with their last
answer.
"""

import asyncio
from collections.abc import Callable

from actorlm.actors.operator_link import OperatorLink
from actorlm.errors import ConfigError, Unavailable
from actorlm.messages.operator import OrderEnded, OrderProgressed, TreeDescribed
from actorlm.messages.supervisor import DescribeTree, Order
from actorlm.runtime.events import LinkUp
from actorlm.runtime.network import Network
from actorlm.wire import Message

PATIENCE_S = 3.0


class SupervisorOperations:
    """Implements `api.ports.Operations`. `network` makes networks for single questions to `supervisor`, an address.

    It may raise ConfigError where the keys of this host have none of an operator.
    """

    def __init__(self, supervisor: str, network: Callable[[], Network]) -> None:
        self._supervisor = supervisor
        self._network = network

    async def describe(self) -> TreeDescribed:
        """See `api.ports.Operations`."""
        answer = await self._ask(DescribeTree())
        assert isinstance(answer, TreeDescribed), "it was asked for nothing else"
        return answer

    async def order(self, order: Order) -> OrderProgressed | OrderEnded:
        """See `api.ports.Operations`."""
        answer = await self._ask(order)
        assert isinstance(answer, OrderProgressed | OrderEnded), "it was asked for nothing else"
        return answer

    async def _ask(self, question: Message) -> Message:
        """The first answer. Raises Unavailable where none comes in time."""
        try:
            network = self._network()
        except ConfigError as error:
            raise Unavailable(f"this frontend may not speak for operators: {error.message}") from None
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._exchange(network, question)
        except TimeoutError:
            raise Unavailable(f"the supervisor did not answer within {PATIENCE_S:g} s; try again later") from None
        finally:
            await network.close()

    async def _exchange(self, network: Network, question: Message) -> Message:
        link = OperatorLink(network, self._supervisor)
        try:
            await link.begin(question)
            while isinstance(answer := await link.read(), LinkUp):
                link.send(question)
        except Unavailable as error:
            raise Unavailable(f"the supervisor refuses operators of HTTP: {error.message}") from None
        return answer
