"""Writes what goes into a core, and what it decides, to a file: a witness, and a thread that does the work.

A step waits for nothing: what happens is put into a queue as it is; the thread redacts, encodes and writes. Where the
thread does not keep up, the file is full or the disk is, the recording ends with a warning, and serving goes on. After
each batch the file is flushed, so a process that is killed loses what was in the queue.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NamedTuple

import msgspec
import structlog

from actorlm.errors import ActorlmError, reason_of
from actorlm.messages.engine import Generate
from actorlm.messages.executor import StepDone
from actorlm.recording.records import Aborted, Admitted, Ended, Header, Record, Took, framed, opening, planned
from actorlm.recording.redaction import Redaction
from actorlm.scheduling.core import Gain, Step
from actorlm.scheduling.plan import StepPlan
from actorlm.wire import int64

MAX_QUEUED_BYTES = 2**26
ROW_BYTES = 32
"""About what a row of a plan takes in the queue."""
CLOSE_S = 2.0

log = structlog.get_logger(__name__)


class _Request(NamedTuple):
    at: float
    message: Generate
    refusal: str | None


class _Abort(NamedTuple):
    at: float
    requests: Sequence[int]


class _Plan(NamedTuple):
    at: float
    plan: StepPlan | None


class _Tokens(NamedTuple):
    at: float
    plan: StepPlan
    tokens: bytes


_Happened = _Request | _Abort | _Plan | _Tokens


class Recorder:
    """Records one core from its beginning. `redaction` is what hides texts, `max_bytes` the size of the whole file."""

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        redaction: Redaction | None,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._redaction = redaction
        self._max_bytes = max_bytes
        self._clock = clock
        self._began = clock()
        self._queue: SimpleQueue[_Happened | None] = SimpleQueue()
        self._queued = self._done = 0
        """Bytes that were ever put into the queue, and taken out; each is counted by one thread."""
        self._ended = False
        self._encode = msgspec.msgpack.Encoder().encode
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        self._written = file.write(opening(header))
        file.flush()
        self._thread = threading.Thread(target=self._run, args=(file,), name="recorder", daemon=True)
        self._thread.start()
        log.info("recording", file=str(path), redacted=redaction is not None)

    def admitted(self, message: Generate, refusal: ActorlmError | None) -> None:
        """See `Witness`. What no scheduler would take changes nothing, and may be a text: it is left out."""
        if refusal is None or refusal.status >= 429:
            code = None if refusal is None else str(refusal.code)
            size = len(message.prompt_ids) + len(message.generated_ids)
            self._put(_Request(self._now(), message, code), size)

    def aborted(self, requests: Sequence[int], ended: Sequence[int]) -> None:
        """See `Witness`."""
        self._put(_Abort(self._now(), requests), 8 * len(requests))

    def planned(self, plan: StepPlan | None) -> None:
        """See `Witness`."""
        self._put(_Plan(self._now(), plan), 0 if plan is None else ROW_BYTES * len(plan.slots))

    def took(self, step: Step, done: StepDone, gain: Gain) -> None:
        """See `Witness`."""
        self._put(_Tokens(self._now(), step.plan, done.tokens), len(done.tokens))

    def close(self) -> None:
        """Writes what is queued, within CLOSE_S seconds."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _now(self) -> float:
        return self._clock() - self._began

    def _put(self, happened: _Happened, size: int) -> None:
        if self._ended:
            return
        self._queue.put(happened)
        self._queued += size
        if self._queued - self._done > MAX_QUEUED_BYTES:
            self._end("its disk does not keep up")

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._queue.put(None)
            log.warning("recording ended", file=str(self._path), reason=reason)

    def _run(self, file: BinaryIO) -> None:
        try:
            with file:
                while (happened := self._queue.get()) is not None:
                    if not self._write(file, happened):
                        return
                    if self._queue.empty():
                        file.flush()
        except OSError as error:
            self._end(f"it cannot be written: {reason_of(error)}")

    def _write(self, file: BinaryIO, happened: _Happened) -> bool:
        """False at the size at which the file ends."""
        record, size = self._record(happened)
        frame = framed(self._encode(record))
        full = self._written + len(frame) > self._max_bytes
        if full:
            reason = f"it has reached {self._max_bytes >> 20} MiB (--record-max-mib)"
            frame = framed(self._encode(Ended(record.at, reason)))
            self._end(reason)
        self._written += file.write(frame)
        self._done += size
        return not full

    def _record(self, happened: _Happened) -> tuple[Record, int]:
        """The record of what happened, and how much it counted in the queue."""
        hidden = self._redaction
        match happened:
            case _Request(at, message, refusal):
                size = len(message.prompt_ids) + len(message.generated_ids)
                if hidden is not None:
                    message = hidden.generate(message, accepted=refusal is None)
                return Admitted(at, message, refusal), size
            case _Abort(at, requests):
                if hidden is not None:
                    hidden.forget(requests)
                return Aborted(at, int64(requests)), 8 * len(requests)
            case _Plan(at, plan):
                return planned(plan, at), 0 if plan is None else ROW_BYTES * len(plan.slots)
            case _Tokens(at, plan, tokens):
                size = len(tokens)
                return Took(at, plan.step, tokens if hidden is None else hidden.sampled(plan, tokens)), size
