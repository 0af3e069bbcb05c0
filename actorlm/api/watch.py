"""Files that are read again when they change. What is broken then is logged, and what was read before stays.

Contents are compared, not times: copying tools keep times, and two writes may have the same.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from actorlm.errors import ConfigError

PERIOD_S = 1.0

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Watched(Generic[T]):
    """What `load` makes of `files`. It raises ConfigError for what is of no use. `what` they are is for the log."""

    def __init__(self, what: str, files: Sequence[Path], load: Callable[[], T]) -> None:
        self._what = what
        self._files = files
        self._load = load
        self._seen: list[bytes | None] = []

    def read(self) -> T:
        """Reads them now. Raises ConfigError."""
        self._seen = self._contents()  # before loading: what changes in between is seen as a change
        return self._load()

    async def watch(self, use: Callable[[T], None]) -> None:
        """Has what is new used, for ever; looks on a thread, because a disk may be slow."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                if await asyncio.to_thread(self._is_changed):
                    use(await asyncio.to_thread(self.read))
                    log.info("files read again", what=self._what, files=[str(file) for file in self._files])
            except ConfigError as error:
                log.error("files not read again, the old ones count", what=self._what, reason=error.message)  # noqa: TRY400

    def _is_changed(self) -> bool:
        return self._contents() != self._seen

    def _contents(self) -> list[bytes | None]:
        return [_read(file) for file in self._files]


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None
