"""What operators want done: a restart, a drain, the end. The last answer to an order says whether it was done."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, assert_never

from actorlm.actors.ending import FAILED_STATUS, Ending
from actorlm.actors.operators import Operators
from actorlm.actors.rolling import Rolling
from actorlm.errors import ActorlmError, BadRequest
from actorlm.messages.operator import REFUSED_STATUS
from actorlm.messages.supervisor import DrainTree, Order, RestartActors, StopTree
from actorlm.screen import Screen


class Orders:
    """`begin_end` ends the tree after a drain of so many seconds; `spawn` runs a task beside the supervisor."""

    def __init__(
        self,
        operators: Operators,
        rolling: Rolling,
        ending: Ending,
        *,
        begin_end: Callable[[float], None],
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        screen: Screen,
        drain_timeout_s: float,
    ) -> None:
        self._operators = operators
        self._rolling = rolling
        self._ending = ending
        self._begin_end = begin_end
        self._spawn = spawn
        self._screen = screen
        self._drain_timeout_s = drain_timeout_s
        self._restarting: asyncio.Task[None] | None = None
        self._awaiting: list[tuple[str, float]] = []
        """Who wants the end of the tree, and how long a drain before it."""

    def receive(self, operator: str, order: Order) -> None:
        """An operator gives an order."""
        match order:
            case RestartActors():
                self._restart(operator, order)
            case DrainTree():
                self._end(operator, self._seconds(order.drain_s))
            case StopTree():
                self._end(operator, 0.0)
            case _:
                assert_never(order)

    def begin_end(self) -> None:
        """The tree ends: nothing restarts any more."""
        if self._restarting is not None:
            self._restarting.cancel()

    def ended(self) -> None:
        """The tree has ended; whoever wanted that is told how."""
        for operator, drain_s in self._awaiting:
            self._operators.end_with_tree(operator, *self._how_it_ended(drain_s))

    def _how_it_ended(self, drain_s: float) -> tuple[int, str]:
        if self._ending.cause:
            return FAILED_STATUS, self._ending.cause
        if self._ending.status:
            return FAILED_STATUS, f"ended by a signal, with status {self._ending.status}"
        if drain_s and not self._ending.is_clean:
            return FAILED_STATUS, "ended; not all had finished in time"
        return 0, "drained and ended" if drain_s else "ended"

    def _seconds(self, drain_s: float | None) -> float:
        return self._drain_timeout_s if drain_s is None else drain_s

    def _restart(self, operator: str, order: RestartActors) -> None:
        if self._ending.has_begun:
            self._operators.end(operator, FAILED_STATUS, "the tree is ending")
            return
        if self._restarting is not None and not self._restarting.done():
            self._operators.end(operator, FAILED_STATUS, "another restart is under way; wait for its end")
            return
        try:
            groups = self._rolling.groups(order.what)
        except BadRequest as error:
            self._operators.end(operator, REFUSED_STATUS, error.message)
            return
        self._screen.line(f"an operator restarts {order.what}")
        self._restarting = self._spawn(self._run_restart(operator, groups, self._seconds(order.drain_s)))

    async def _run_restart(self, operator: str, groups: Sequence[str], drain_s: float) -> None:
        try:
            clean = await self._rolling.run(groups, drain_s, lambda text: self._operators.tell(operator, text))
        except ActorlmError as error:
            self._operators.end(operator, FAILED_STATUS, error.message)
        except asyncio.CancelledError:
            self._operators.end(operator, FAILED_STATUS, "the tree is ending; what was not restarted yet is left")
            raise
        else:
            self._operators.end(operator, 0 if clean else FAILED_STATUS, "done" if clean else "done; some were cut off")

    def _end(self, operator: str, drain_s: float) -> None:
        if not self._ending.has_begun:
            self._screen.line("an operator ends the tree")
            self._begin_end(drain_s)
            text = f"draining for up to {drain_s:g} s" if drain_s else "stopping"
        elif drain_s:
            text = "the tree is ending already, by its own deadline"
        else:
            self._ending.cut_short()
            text = "the tree is ending already; what it has left ends with an error"
        self._operators.tell(operator, text)
        self._awaiting.append((operator, drain_s))
