"""The compiled kernels: the library for this CPU, and the threads that it computes with. Imports no torch.

A library is chosen by what the CPU can do, at run time. Its functions take addresses and sizes; the launchers in this
package check what they pass. Launches can be recorded, to be repeated without the launchers.
"""

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from actorlm.errors import ConfigError
from actorlm.kernels.build import LEVELS, library_path

ADDRESS, SIZE, NUMBER, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "pack": (NUMBER, ADDRESS, ADDRESS, SIZE, SIZE, SIZE),
    "gather": (NUMBER, ADDRESS, ADDRESS, ADDRESS, SIZE, SIZE),
    "linear": (ADDRESS, NUMBER, *[ADDRESS] * 4, *[SIZE] * 5, NUMBER),
    "pack_int8": (ADDRESS, ADDRESS, SIZE, SIZE, SIZE),
    "gather_int8": (*[ADDRESS] * 4, SIZE, SIZE),
    "linear_int8": (*[ADDRESS] * 6, *[SIZE] * 5, NUMBER),
    "pack_blocks": (NUMBER, ADDRESS, ADDRESS, SIZE, SIZE, SIZE),
    "gather_blocks": (NUMBER, ADDRESS, ADDRESS, ADDRESS, SIZE, SIZE),
    "linear_blocks": (ADDRESS, NUMBER, *[ADDRESS] * 4, *[SIZE] * 5, NUMBER),
    "rms_norm": (ADDRESS, ADDRESS, ADDRESS, FLOAT, ADDRESS, *[SIZE] * 4),
    "silu_mul": (ADDRESS, ADDRESS, ADDRESS, SIZE, SIZE),
    "rope_and_store": (ADDRESS, NUMBER, *[ADDRESS] * 5, *[SIZE] * 4),
    "paged_attention": (ADDRESS, NUMBER, *[ADDRESS] * 6, *[SIZE] * 6, FLOAT, FLOAT),
    "choose_tokens": (*[ADDRESS] * 9, SIZE, SIZE),
    "pool_stop": (ADDRESS,),
    "add_reduced": (*[ADDRESS] * 4, SIZE),
    "gather_shares": (*[ADDRESS] * 3, SIZE),
    "spread": (ADDRESS, ADDRESS, SIZE),
    "exchange_close": (ADDRESS,),
}
MAKERS = (
    ("pool_start", (NUMBER,), ADDRESS),
    ("panel_bytes", (NUMBER, SIZE), SIZE),
    ("exchange_bytes", (NUMBER, SIZE), SIZE),
    ("exchange_open", (ADDRESS, NUMBER, NUMBER, SIZE, ctypes.c_double), ADDRESS),
    ("exchange_missing", (ADDRESS,), NUMBER),
)
"""Functions that give something back, and are never part of a step."""


class Launch(NamedTuple):
    """A function that was called, with addresses and sizes, and what they were made of, which keeps the memory."""

    function: Any
    arguments: tuple[Any, ...]
    made_of: tuple[Any, ...]


class Native:
    """The functions of a library, and a pool of threads for them. One thread at a time may call."""

    def __init__(self, level: str, threads: int) -> None:
        self.level = level
        self.threads = threads
        self.library = _load(library_path(level))
        self.pool: int = self.library.pool_start(threads)
        self._recording: list[Launch] | None = None
        weakref.finalize(self, self.library.pool_stop, self.pool)

    def launch(self, name: str, *arguments: Any) -> None:
        """Calls a function. A tensor stands for its address."""
        function = getattr(self.library, name)
        addressed = tuple(each.data_ptr() if hasattr(each, "data_ptr") else each for each in arguments)
        if self._recording is not None:
            self._recording.append(Launch(function, addressed, arguments))
        function(*addressed)

    @contextmanager
    def recording(self) -> Iterator[list[Launch]]:
        """Gathers the launches meanwhile, so that they can be repeated: the same work on what lies there then."""
        assert self._recording is None, "one recording at a time"
        launches: list[Launch] = []
        self._recording = launches
        try:
            yield launches
        finally:
            self._recording = None


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, signature in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = signature, None
    for name, signature, result in MAKERS:
        function = getattr(library, name)
        function.argtypes, function.restype = signature, result
    return library


def runnable_levels() -> list[str]:
    """The instruction sets that this CPU has and a library is there for, least first."""
    portable = library_path("portable")
    if not portable.exists():
        return []
    supported = list(LEVELS)[: ctypes.CDLL(str(portable)).cpu_level() + 1]
    return [level for level in supported if library_path(level).exists()]


def best_level() -> str:
    """The last of them. Raises ConfigError if there is none."""
    levels = runnable_levels()
    if not levels:
        raise ConfigError(
            "there are no compiled kernels for the sources of this installation; install actorlm again with a C++17 "
            "compiler on the path, or run `python -m actorlm.kernels.build`",
            param="cpu_kernels",
        )
    return levels[-1]


def choose_level(kernels: str) -> str | None:
    """What the option `cpu_kernels` means here: an instruction set, or None for plain torch.

    Raises ConfigError if it is `native` and there are none.
    """
    if kernels == "torch":
        return None
    try:
        return best_level()
    except ConfigError:
        if kernels == "native":
            raise
        return None


def describe_choice(kernels: str) -> str:
    """The same for people. Raises ConfigError, too."""
    level = choose_level(kernels)
    if level is not None:
        return f"native, {level}"
    return "plain torch" if kernels == "torch" else "plain torch, which is slower: there are no compiled kernels"
