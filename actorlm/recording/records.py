"""The file format of a recording: a magic line, a header in JSON, and records in msgpack, each behind its length.

A record is what went into a core, or what it decided, in order. The file may end anywhere, as its writer may: what is
cut off is left out. Records are positional, so the header carries a digest of their structs, and a file is read by a
version whose structs are the same.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from actorlm.config import SchedulerConfig
from actorlm.errors import ActorlmError, reason_of
from actorlm.messages.engine import Generate
from actorlm.runtime.fingerprint import fingerprint
from actorlm.scheduling.plan import StepPlan
from actorlm.wire import Int32, Int64, Message, int32

MAGIC = b"actorlm recording 1\n"
LENGTH_BYTES = 4
MAX_RECORD_BYTES = 2**28
NOTHING = -1
"""The step of a plan that came to nothing."""


class BadRecording(ActorlmError):
    """A file that cannot be replayed."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The replica. `digest` is of the records' structs; with `redacted` no token id is the original one."""

    version: str
    digest: str
    recorded: str
    actor: str
    redacted: bool
    scheduler: SchedulerConfig
    num_blocks: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    prefix_caching: bool
    lanes: int


class Admitted(Message):
    """A request was accepted, or refused with the `refusal`'s code. `at` is seconds since the recording began."""

    at: float
    message: Generate
    refusal: str | None


class Aborted(Message):
    """An abort of these requests."""

    at: float
    requests: Int64


class Planned(Message):
    """What the next step was to be, as in RunStep; `added` is slot, tokens and prompt tokens of each newcomer."""

    at: float
    step: int
    released: Int32 = b""
    added: Int32 = b""
    block_slots: Int32 = b""
    block_ids: Int32 = b""
    slots: Int32 = b""
    starts: Int32 = b""
    counts: Int32 = b""
    sampled: Int32 = b""


class Took(Message):
    """The oldest step in flight came back with these tokens."""

    at: float
    step: int
    tokens: Int32


class Ended(Message):
    """The recording stopped by itself, while its replica went on."""

    at: float
    reason: str


Record = Admitted | Aborted | Planned | Took | Ended


def digest() -> str:
    """Of the structs that records are made of."""
    return fingerprint({"recording": Record}, 1).digest


def planned(plan: StepPlan | None, at: float) -> Planned:
    """The record of a plan."""
    if plan is None:
        return Planned(at, NOTHING)
    added = array("i")
    for request in plan.added:
        added.extend((request.slot, len(request.token_ids) // 4, request.prompt_length))
    return Planned(
        at,
        plan.step,
        int32(plan.released),
        added.tobytes(),
        int32(plan.block_slots),
        int32(plan.block_ids),
        int32(plan.slots),
        int32(plan.starts),
        int32(plan.counts),
        int32(plan.sampled),
    )


def framed(content: bytes) -> bytes:
    """The bytes behind their length."""
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


def opening(header: Header) -> bytes:
    """What a file begins with."""
    return MAGIC + framed(msgspec.json.encode(header))


class Recording:
    """A file that is being read. `truncated` is known once all records have been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        self.truncated = False
        self.header = self._header()

    def records(self) -> Iterator[Record]:
        """Every whole record. Raises BadRecording for one that makes no sense."""
        decoder = msgspec.msgpack.Decoder(Record)
        while (content := self._frame()) is not None:
            try:
                yield decoder.decode(content)
            except msgspec.DecodeError as error:
                raise BadRecording(f"{self._path}: before byte {self._file.tell()}: {error}") from None

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _open(self) -> BinaryIO:
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise BadRecording(f"{self._path}: {reason_of(error)}") from None
        if file.read(len(MAGIC)) != MAGIC:
            file.close()
            raise BadRecording(f"{self._path} is no recording; `actorlm up --record-dir DIR` writes some")
        return file

    def _header(self) -> Header:
        content = self._frame()
        try:
            header = msgspec.json.decode(content or b"", type=Header)
        except msgspec.DecodeError as error:
            raise BadRecording(f"{self._path}: its header cannot be read: {error}") from None
        if header.digest != digest():
            raise BadRecording(
                f"{self._path} is of actorlm {header.version}, whose records differ from this version's;"
                f" replay it with that one"
            )
        return header

    def _frame(self) -> bytes | None:
        length = self._file.read(LENGTH_BYTES)
        size = int.from_bytes(length, "little")
        if size > MAX_RECORD_BYTES:
            raise BadRecording(f"{self._path}: before byte {self._file.tell()}: a record of {size} bytes")
        content = self._file.read(size)
        self.truncated = bool(length) and (len(length) < LENGTH_BYTES or len(content) < size or not size)
        return content if length and not self.truncated else None
