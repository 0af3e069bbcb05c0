"""A Worker: one rank's runner, and the methods of it that may be called from outside.

The same object runs on a thread of its EngineCore (inline executor) and in a process of its own (actors/worker.py).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import Config
from actorlm.errors import ProtocolError
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep
from actorlm.topology import ONLY, Place
from actorlm.wire import read_int32

log = structlog.get_logger(__name__)

PATIENCE_S = 600.0
"""Time after which a rank no longer waits for another one. Their supervisor notices a death or a hang long before."""


class Runner(Protocol):
    """What computes steps: `execution.runner.Runner`, or `execution.null.NullRunner`."""

    bytes_read: int
    """Of the checkpoint's tensors."""

    def load(self, progress: Callable[[int, int], None]) -> None:
        """Loads the weights; `progress` gets bytes done and in total."""

    def warm_up(self) -> None:
        """Runs one real step."""

    def execute(self, step: RunStep) -> StepDone | None:
        """Computes one step, which the output rank answers."""


class Worker:
    """One rank of a replica."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.last_step = -1
        self.doing = "idle"
        self._trace_ids: dict[int, str] = {}
        """Of the requests that entered each slot last, for logs."""
        self.callable: dict[str, Callable[..., Any]] = {"describe": self.describe}
        """The only methods that `call` reaches."""

    def load(self, progress: Callable[[int, int], None]) -> None:
        """Loads the weights and runs a first step."""
        self.doing = "loading weights"
        self._runner.load(progress)
        self.doing = "warming up"
        self._runner.warm_up()
        self.doing = "idle"

    def execute(self, step: RunStep) -> StepDone | None:
        """Computes one step, which the output rank answers."""
        self.doing = f"step {step.step}"
        for added in step.added:
            self._trace_ids[added.slot] = added.trace_id
            if added.trace_id:  # nobody asks for those of a program of its own
                log.debug("entered slot", request_id=added.trace_id, slot=added.slot, step=step.step)
        try:
            done = self._runner.execute(step)
        except Exception as error:
            self._tell_of_failure(step, error)
            raise
        self.last_step = step.step
        self.doing = "idle"
        return done

    def _tell_of_failure(self, step: RunStep, error: Exception) -> None:
        """Whose step it was: who receives the error knows no requests. It comes with its traceback there."""
        whose = [self._trace_ids.get(slot, "") for slot in read_int32(step.slots)]
        if not any(whose):
            return  # a program of its own knows, and its output is not ours
        log.error("step failed", step=step.step, request_ids=whose, error=f"{type(error).__name__}: {error}")

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """The result of a method by name. Raises ProtocolError for one that is not listed."""
        if method not in self.callable:
            raise ProtocolError(f"{method} is no method that may be called; these are: {', '.join(self.callable)}")
        return self.callable[method](*args)

    def describe(self) -> dict[str, Any]:
        """What this worker has done and is doing, and how much of the checkpoint it has read."""
        return {"last_step": self.last_step, "doing": self.doing, "bytes_read": self._runner.bytes_read}


def build_worker(
    config: Config,
    model: ModelDescription,
    *,
    num_blocks: int,
    threads: int,
    place: Place = ONLY,
    meet: Callable[[], Any] | None = None,
) -> Worker:
    """The worker of this place for these options. torch is imported here, and only for a model that needs it.

    `meet` gives the `Meeting` of several ranks.
    """
    if config.model.model_impl == "null":
        from actorlm.execution.null import NullRunner  # noqa: PLC0415 - one of two, chosen by option

        null = NullRunner(
            model,
            num_blocks=num_blocks,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=model.max_model_len,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            step_ms=config.model.null_step_ms,
            answers=place.is_output,
        )
        return Worker(null)
    from actorlm.execution.runner import Runner as TorchRunner  # noqa: PLC0415 - imports torch

    return Worker(
        TorchRunner(
            model,
            dtype=config.model.dtype,
            weights=config.model.weights,
            kv_cache_dtype=config.cache.kv_cache_dtype,
            kernels=config.model.cpu_kernels,
            device=config.model.device,
            num_blocks=num_blocks,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=model.max_model_len,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            threads=threads,
            place=place,
            meet=meet,
            pipeline_layers=config.parallel.layers_of_stages,
        )
    )


def meet_at(
    address: str, place: Place, patience_s: float, *, occasion: str = "replica", own: str | None = None
) -> Callable[[], Any]:
    """What makes the `Meeting` of a replica's ranks; the address or the occasion is new with each of their starts.

    `own` is the address by which other hosts reach this one.
    """

    def meet() -> Any:
        from actorlm.parallel.meeting import Meeting  # noqa: PLC0415 - imports torch

        return Meeting(address, place, patience_s=patience_s, occasion=occasion, own=own)

    return meet
