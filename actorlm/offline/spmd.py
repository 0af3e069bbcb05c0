"""One program on several ranks: a launcher starts it once for each, and all run `LLM(..., executor="external")`.

    torchrun --nproc-per-node 2 program.py        # LLM(model, tp=2, executor="external")

Every rank has the whole control plane and the weights of its place; a step's answer comes from the output rank. All
ranks decide alike because nothing is decided by time or by chance: what differs from rank to rank, free memory and
drawn seeds, is agreed on first.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from actorlm.config import Config, Launched, launched
from actorlm.errors import ConfigError
from actorlm.execution.worker import PATIENCE_S
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep
from actorlm.topology import Place, places

_OCCASIONS = count()
"""Ranks make their models in the same order, so the n-th of one meets the n-th of the others."""


class SpmdJob:
    """One rank among all that were launched. Raises ConfigError if they are not as many as the options say."""

    def __init__(self, config: Config) -> None:
        self._launched = launched()
        self.place = _place(self._launched, config)
        self._occasion = f"actorlm-{self._launched.attempt}-{next(_OCCASIONS)}"
        self._meeting: Any = None

    def meet(self) -> Any:
        """The `Meeting` of all ranks. Imports torch. Raises PeerMissing."""
        from actorlm.parallel.meeting import Meeting  # noqa: PLC0415 - imports torch

        if self._meeting is None:
            master = self._launched
            host = f"[{master.master_addr}]" if ":" in master.master_addr else master.master_addr
            self._meeting = Meeting(
                f"tcp://{host}:{master.master_port}",
                self.place,
                patience_s=PATIENCE_S,
                occasion=self._occasion,
                exists=master.store_exists,
            )
        return self._meeting

    def sharing(self) -> Callable[[RunStep, StepDone | None], StepDone]:
        """What gives every rank the output rank's answers."""
        from actorlm.parallel.answers import Answers  # noqa: PLC0415 - imports torch

        return Answers(self.meet().everyone(), self.place, PATIENCE_S).share


def _place(rank: Launched, config: Config) -> Place:
    tensor, pipeline = config.parallel.tensor, config.parallel.pipeline
    if rank.world_size != tensor * pipeline:
        raise ConfigError(
            f"executor is external, and the launcher started WORLD_SIZE={rank.world_size} ranks; tp {tensor} and"
            f" pp {pipeline} need {tensor * pipeline}",
            param="executor",
        )
    if not 0 <= rank.rank < rank.world_size:
        raise ConfigError(f"RANK is {rank.rank}; it must be 0 to {rank.world_size - 1}", param="executor")
    return places(tensor, pipeline)[rank.rank]
