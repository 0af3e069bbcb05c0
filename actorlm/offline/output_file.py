"""The file of answers: whole lines only, one writer, and what it has already is found again.

An answer is one write of one line, so whatever ends the process leaves whole lines, but for a last one that is torn;
that one is cut off when the file is opened again.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from actorlm.errors import BadRequest, reason_of
from actorlm.offline.rows import Answer, Id

BEGINNING = b'{"index":'
"""What every answer begins with. A torn end that does not is not ours to cut."""


class OutputFile:
    """Answers go to `path`, or to standard output if it is None, where nothing is found again.

    `keys` are the ids of the input's rows. `done` are the rows that have answers already, `errors` counts those of
    them that are errors. Raises BadRequest for a file that holds other things, or that another process writes.
    """

    def __init__(self, path: Path | None, keys: Sequence[Id | None]) -> None:
        self.done: set[int] = set()
        self.errors = 0
        self._name = "standard output" if path is None else str(path)
        self._descriptor = os.dup(1) if path is None else _open(path)
        try:
            if path is not None and stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                self._take_over(path, keys)
        except BaseException:
            self.close()
            raise

    @property
    def is_terminal(self) -> bool:
        """Whether somebody reads it as it comes."""
        return os.isatty(self._descriptor)

    def append(self, answer: Answer) -> None:
        """Writes one line. Raises BadRequest if it cannot be written."""
        line = memoryview(msgspec.json.encode(answer) + b"\n")
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            raise BadRequest(f"cannot write to {self._name}: {reason_of(error)}") from None
        self._count(answer)

    def close(self) -> None:
        """Gives the file free."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count(self, answer: Answer) -> None:
        self.done.add(answer.index)
        self.errors += answer.error is not None

    def _take_over(self, path: Path, keys: Sequence[Id | None]) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadRequest(f"{path} is being written by another process; wait for it, or name another file") from None
        with path.open("rb") as file:
            torn = self._read(file, keys)
        if torn:
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - torn)

    def _read(self, file: BinaryIO, keys: Sequence[Id | None]) -> int:
        """Learns which rows are done; returns the length of a torn last line."""
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") and (line.startswith(BEGINNING) or BEGINNING.startswith(line)):
                return len(line)
            try:
                answer = msgspec.json.decode(line, type=Answer)
            except msgspec.DecodeError:
                raise BadRequest(
                    f"{self._name}: line {number} is no answer of `actorlm generate`; name another file"
                ) from None
            self._check(answer, number, keys)
            self._count(answer)
        return 0

    def _check(self, answer: Answer, number: int, keys: Sequence[Id | None]) -> None:
        where = f"{self._name}: line {number} answers row {answer.index}"
        if not 0 <= answer.index < len(keys):
            raise BadRequest(f"{where}, and the input has {len(keys)} rows; name another file")
        if answer.key != keys[answer.index]:
            raise BadRequest(
                f"{where} with the id {answer.key!r}, and the input's is {keys[answer.index]!r}; name another file"
            )
        if answer.index in self.done:
            raise BadRequest(f"{where} again; name another file")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BadRequest(f"cannot write to {path}: {reason_of(error)}") from None
