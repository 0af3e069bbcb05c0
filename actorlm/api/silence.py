"""What a stream says while it has nothing to say: comments, so that no proxy takes its silence for its end."""

import asyncio
from collections.abc import Sequence
from typing import Self

from actorlm.api.ports import Delta, Generation

COMMENT = b": keep-alive\n\n"
"""Readers of server-sent events ignore lines that begin with a colon."""


class Pauses:
    """A generation's deltas, and an empty sequence whenever none have come for `seconds`."""

    def __init__(self, generation: Generation, seconds: float) -> None:
        self._generation = generation
        self._seconds = seconds

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Delta]:
        try:
            async with asyncio.timeout(self._seconds):
                return await anext(self._generation)
        except TimeoutError:
            return ()
