"""A loaded model and the thread that drives it: what `LLM`, `actorlm generate` and `actorlm bench offline` share.

Everything that changes the engine happens on that one thread, so that Ctrl-C, which Python delivers to the main
thread, interrupts the waiting for a step and never the step itself. The worker computes on another one.
"""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Lock
from typing import NamedTuple, ParamSpec, TypeVar

from actorlm.api.ports import Limits
from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.pull import Progress
from actorlm.config import BLOCK_SIZE, Config
from actorlm.errors import BadRequest, Closed
from actorlm.execution.worker import Worker, build_worker
from actorlm.offline.batch import Batch, Job
from actorlm.offline.engine import Engine
from actorlm.offline.options import check_offline
from actorlm.offline.outputs import RequestOutput
from actorlm.offline.prompts import Preparation
from actorlm.offline.spmd import SpmdJob
from actorlm.offline.worker_thread import WorkerThread
from actorlm.planning import find_model, plan_tree, with_types
from actorlm.scheduling.core import Core
from actorlm.scheduling.scheduler import Scheduler
from actorlm.screen import Screen
from actorlm.text.chat_template import load_chat_template
from actorlm.text.tokenizer import Tokenizer, load_tokenizer
from actorlm.topology import ONLY

P = ParamSpec("P")
T = TypeVar("T")


class StepResult(NamedTuple):
    """What one step gave: how many new tokens, and the prompts that are complete with it."""

    tokens: int
    complete: list[tuple[Job, RequestOutput]]


class Session:
    """The model of a Config, loaded. `progress` gets phases, and bytes done and in total, while it is.

    `config` are the options with the types that auto stands for, `context` is the most tokens of one prompt and its
    output, `threads` are those of the tensor arithmetic. Raises ConfigError, ModelError or InsufficientMemory.
    """

    def __init__(self, config: Config, progress: Progress) -> None:
        check_offline(config)
        self._job = SpmdJob(config) if config.parallel.executor == "external" else None
        self.model = find_model(config, progress)
        self.config = config = with_types(config, self.model)
        planned = plan_tree(config, self.model, "")
        num_blocks = planned.kv_cache_tokens // BLOCK_SIZE
        if self._job is not None:
            num_blocks = self._job.meet().least("blocks", num_blocks)
        self._window = 2 * config.scheduler.max_num_seqs
        self._numbers = count()
        self._turn = Lock()
        tokenizer = load_tokenizer(self.model)
        # The last token is never computed: a sequence may be one token longer than the cache.
        self.context = min(self.model.max_model_len, num_blocks * BLOCK_SIZE + 1)
        self.threads = planned.threads
        limits = Limits(context=self.context, max_choices=0)
        self._preparation = Preparation(self.model, tokenizer, load_chat_template(self.model), limits)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llm")
        build = _builder(config, self.model, tokenizer, num_blocks, planned.threads, self._job)
        try:
            self._engine: Engine | None = self._call(build, progress)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    def agreed(self, what: str, number: int) -> int:
        """The number itself, or the first rank's where there are several ranks."""
        return number if self._job is None else int(self._job.meet().first(what, number))

    @property
    def preparation(self) -> Preparation:
        """What turns prompts into jobs. Raises Closed."""
        self._opened()
        return self._preparation

    def run(self, jobs: Iterable[Job]) -> Generator[StepResult]:
        """Runs jobs to their ends, a step an item. Ended early, it aborts what is left; so close it (`closing`).

        `jobs` are taken as there is room. Raises Closed, BadRequest while another run goes on, ExecutorFailed.
        """
        engine = self._opened()
        if not self._turn.acquire(blocking=False):
            raise BadRequest("this model is generating already; wait for that call to end, or make another LLM")
        try:
            batch = Batch(jobs, self._numbers, self._window)
            while (fresh := batch.refill()) or batch.is_open:
                self._opened()
                advance = self._call(engine.advance, fresh)
                yield StepResult(advance.tokens, batch.take(advance.ended))
        finally:
            try:
                if self._engine is not None:
                    self._thread.submit(engine.abort_all)  # after the step that runs, and before any of a later call
            finally:
                self._turn.release()

    def close(self) -> None:
        """Frees the weights and the KV cache. Idempotent."""
        engine, self._engine = self._engine, None
        self._thread.shutdown(wait=True, cancel_futures=True)
        if engine is not None:
            engine.close()

    def _opened(self) -> Engine:
        if self._engine is None:
            raise Closed("this LLM is closed, and its weights are freed; make a new one")
        return self._engine

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.submit(function, *args, **kwargs).result()


def load(config: Config, screen: Screen) -> Session:
    """The model of a Config, with bars on `screen` while it is fetched and loaded. Raises as Session does."""
    try:
        return Session(config, screen.bar)
    finally:
        screen.close()


def _builder(
    config: Config,
    model: ModelDescription,
    tokenizer: Tokenizer,
    num_blocks: int,
    threads: int,
    job: SpmdJob | None,
) -> Callable[[Progress], Engine]:
    """What loads the model; torch is imported and set up on the worker's thread."""

    def build(progress: Progress) -> Engine:
        def load_worker() -> Worker:
            place, meet = (ONLY, None) if job is None else (job.place, job.meet)
            worker = build_worker(config, model, num_blocks=num_blocks, threads=threads, place=place, meet=meet)
            worker.load(lambda done, total: progress("weights", done, total))
            return worker

        worker = WorkerThread(load_worker, None if job is None else job.sharing())
        scheduler = Scheduler(
            config.scheduler,
            num_blocks=num_blocks,
            max_model_len=model.max_model_len,
            eos_token_ids=model.eos_token_ids,
            prefix_caching=config.cache.prefix_caching,
            lanes=config.parallel.pipeline,
        )
        return Engine(Core(scheduler, model.vocab_size), worker, tokenizer, model.eos_token_ids)

    return build
