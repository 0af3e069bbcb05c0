"""What a stage is given, what it yields, and running several: one that fails is recorded, and the others go on."""

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from actorlm.bench.gpu.clock import Clock
from actorlm.bench.gpu.sizes import Sizes

Row = dict[str, Any]
"""One result: names and numbers, with their units in the names."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where kernels run."""

    device: torch.device
    card: str
    multiprocessors: int
    clock: Clock
    sizes: Sizes

    @property
    def has_fp8(self) -> bool:
        """Whether the card multiplies fp8 e4m3, which began with sm_89."""
        return self.card != "" and int(self.card.removeprefix("sm_")) >= 89


Stage = Callable[[Machine], Iterator[tuple[str, Callable[[], Row]]]]
"""Names its cases, each with what runs it."""


@dataclass(slots=True)
class Results:
    """Of all stages."""

    rows: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Cases for which a stage had no time left."""


def run(stages: dict[str, Stage], machine: Machine, budget_s: float, told: Callable[[str], None]) -> Results:
    """Runs stages, each for about `budget_s` seconds at most; `told` gets a line a case."""
    results = Results()
    for name, stage in stages.items():
        began = time.monotonic()
        for case, act in _cases(name, stage, machine, results, told):
            if time.monotonic() - began > budget_s:
                results.left_out.append(f"{name}: {case}")
                continue
            _run(name, case, act, results, told)
    return results


def _cases(
    name: str, stage: Stage, machine: Machine, results: Results, told: Callable[[str], None]
) -> Iterator[tuple[str, Callable[[], Row]]]:
    try:
        yield from stage(machine)
    except Exception as error:  # noqa: BLE001 - recorded
        _fail(name, "the stage itself", error, results, told)


def _run(name: str, case: str, act: Callable[[], Row], results: Results, told: Callable[[str], None]) -> None:
    try:
        row = act()
    except Exception as error:  # noqa: BLE001 - recorded
        _fail(name, case, error, results, told)
        return
    results.rows.append({"stage": name, "case": case, **row})
    told(f"{name}: {case}: " + ", ".join(f"{key} {_short(value)}" for key, value in row.items()))


def _fail(name: str, case: str, error: Exception, results: Results, told: Callable[[str], None]) -> None:
    said = f"{type(error).__name__}: {error}"
    results.failures.append({"stage": name, "case": case, "error": said, "traceback": traceback.format_exc()})
    told(f"{name}: {case}: FAILED: {said.splitlines()[0]}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
