"""Times the control plane alone: what an EngineCore does for a step, and whether a device waits for it.

    python benchmarks/control_plane.py [--rows 8 64 256 1024] [--step-ms 2 5 10] [--running 64] [--json FILE]

The first table is an EngineCore's own CPU time for a step: plan it, encode it, take in its tokens, encode them for the
detokenizer. No device, no socket; medians, and the whole's 99th percentile.

The second is a real EngineCore with `running` requests of the null model, whose steps last as long as they are told to;
its worker is on the inline or on the broadcast executor, with and without asynchronous scheduling, in turn. Balancer,
detokenizer and supervisor are one more process, to which everything goes over ZeroMQ. `gap` is what passes at the
worker between the end of a step and the beginning of the next: so long a device would wait. `busy` is the time of a
step itself; what it has beyond what it was told to last is the null model's own work.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from actorlm.actors.engine import EngineCore, tokens_sampled
from actorlm.actors.membership import Membership
from actorlm.actors.worker import WorkerActor
from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.resolve import resolve
from actorlm.config import SchedulerConfig
from actorlm.execution.null import NullRunner
from actorlm.execution.worker import Worker
from actorlm.executors.base import Executor
from actorlm.executors.inline import InlineExecutor
from actorlm.executors.ranks import Ranks
from actorlm.executors.sockets import follow, lead, subscriber
from actorlm.messages.actor import Control, Stop
from actorlm.messages.balancer import ReplicaAnnounced
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.detokenizer import TokensSampled
from actorlm.messages.engine import Generate
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep
from actorlm.metrics import Metrics
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.sampling import SamplingParams
from actorlm.scheduling.core import Core
from actorlm.scheduling.scheduler import Scheduler
from actorlm.topology import REPLICA_SOCKETS, ReplicaSockets
from actorlm.wire import int32

PROMPT, WARM_UP, EPOCH = 32, 10, 1
MODEL = describe(resolve(None, null=True, progress=lambda *_: None), served_model_name=None, max_model_len=None)
EXECUTORS = ("inline", "broadcast")


def generate(number: int, max_tokens: int) -> Generate:
    """A request that nobody shares a prefix with."""
    prompt = int32([1 + number // 200, 1 + number % 200, *range(1, PROMPT - 1)])
    return Generate(number, 0, "", 0, prompt, b"", SamplingParams(max_tokens=max_tokens, seed=number, ignore_eos=True))


def scheduler(rows: int, steps: int, *, ahead: bool) -> Scheduler:
    """For `rows` requests that all run."""
    config = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=max(2048, rows * PROMPT), async_scheduling=ahead)
    blocks = rows * ((PROMPT + steps) // 16 + 2)
    return Scheduler(config, num_blocks=blocks, max_model_len=10_000, eos_token_ids=(256,), prefix_caching=True)


def own_time(rows: int, steps: int) -> dict[str, float]:
    """Microseconds of an EngineCore's work on a step with so many running requests."""
    core, encoder = Core(scheduler(rows, steps, ahead=False), MODEL.vocab_size), msgspec.msgpack.Encoder()
    for number in range(rows):
        core.admit(generate(number, steps))
    parts: dict[str, list[int]] = {"plan": [], "encode": [], "apply": [], "tokens": []}

    def timed(part: str, work: Callable[[], Any]) -> Any:
        began = time.thread_time_ns()
        result = work()
        parts[part].append(time.thread_time_ns() - began)
        return result

    while core.scheduler.has_work:
        step = timed("plan", core.next_step)
        timed("encode", lambda step=step: encoder.encode(step.message))
        done = StepDone(step.plan.step, int32([7] * len(step.plan.sampled)), 0)
        gain = timed("apply", lambda step=step, done=done: core.take(step, done))
        timed("tokens", lambda gain=gain: encoder.encode(tokens_sampled(0, gain.sampled, gain.scores)))
    times = {part: [ns / 1e3 for ns in values[WARM_UP:-1]] for part, values in parts.items()}
    whole = [sum(step) for step in zip(*times.values(), strict=True)]
    medians = {f"{part}_us": statistics.median(values) for part, values in times.items()}
    return {"rows": rows, **medians, "whole_us": statistics.median(whole), "p99_us": percentile(whole, 0.99)}


def percentile(values: list[float], share: float) -> float:
    """The value below which such a share of them lies."""
    return sorted(values)[int(len(values) * share)]


class TimedRunner(NullRunner):
    """The null model, remembering when each step began and ended."""

    times: list[tuple[int, int]]

    def execute(self, step: RunStep) -> StepDone:
        """Computes one step."""
        began = time.perf_counter_ns()
        done = super().execute(step)
        self.times.append((began, time.perf_counter_ns()))
        return done


def build(rows: int, step_ms: float) -> Worker:
    """A worker that says by `times` how long its steps took, and what passed before each of them, in ns."""
    runner = TimedRunner(
        MODEL,
        num_blocks=rows * 1000,
        max_num_seqs=rows,
        max_model_len=10_000,
        max_num_batched_tokens=max(2048, rows * PROMPT),
        step_ms=step_ms,
    )
    runner.times = []
    worker = Worker(runner)

    def times() -> list[tuple[int, int]]:
        pairs = zip(runner.times[WARM_UP:], runner.times[WARM_UP + 1 :], strict=False)
        return [(end - began, following - end) for (began, end), (following, _) in pairs]

    worker.callable["times"] = times
    return worker


class Process:
    """One process of the benchmark: its network, one mailbox, and the addresses of all, in one directory."""

    def __init__(self, directory: str, role: str, name: str) -> None:
        self.directory, self.role, self.name = directory, role, name
        self.network = ZeroMQNetwork(protocol())
        self.identity = this_process(role, name)
        self.mailbox: Mailbox[Any] = Mailbox(name, 65_536, Overflow.PAUSE)

    def address(self, name: str) -> str:
        """Where a server of this name is."""
        return f"ipc://{self.directory}/{name}"

    @property
    def sockets(self) -> ReplicaSockets:
        """Those between the engine and its worker."""
        return ReplicaSockets("engine-0", *(self.address(f"engine-0-{name}") for name in REPLICA_SOCKETS))

    def link(self, peer: str, inbox: Any = None, socket_name: str = "") -> Any:
        """A link to a server."""
        address = self.address(socket_name or peer)
        inbox = inbox or INBOXES[self.role]
        return self.network.connect(address, peer=peer, identity=self.identity, mailbox=self.mailbox, inbox=inbox)

    def membership(self, inbox: Any = None) -> Membership:
        """The tie to what stands for the supervisor."""
        return Membership(self.link("supervisor", inbox), Metrics(), self.network, Pulse(10.0))


def peers(directory: str, running: int, steps: int, ended: Any) -> None:
    """Balancer, detokenizer and supervisor: give the requests to an engine and take in what it says, until `ended`."""

    async def run() -> None:
        process = Process(directory, "supervisor", "supervisor")
        servers = {}
        for name, admits in {
            "supervisor": ("engine", "worker"),
            "balancer": ("engine",),
            "detokenizer-0": ("engine",),
        }.items():
            role = name.partition("-")[0]
            servers[name] = process.network.serve(
                process.address(name),
                identity=this_process(role, name),
                mailbox=process.mailbox,
                inbox=INBOXES[role],
                admits=admits,
                one_way={"tokens": process.address(f"{name}-tokens")} if role == "detokenizer" else None,
            )
        left = running
        while left:
            for _, message in await process.mailbox.drain():
                if isinstance(message, ReplicaAnnounced):
                    for number in range(running):
                        servers["balancer"].send("engine-0", generate(number, steps))
                elif isinstance(message, TokensSampled):
                    left -= sum(map(bool, message.finishes))
        servers["supervisor"].send("engine-0", Stop())
        await asyncio.to_thread(ended.wait)
        await process.network.close()

    asyncio.run(run())


def worker(directory: str, running: int, step_ms: float) -> None:
    """The process of a worker behind the broadcast executor."""

    async def run() -> None:
        process = Process(directory, "worker", "worker-0-0")
        actor = WorkerActor(
            process.name,
            process.mailbox,
            rank=0,
            build=lambda: build(running, step_ms),
            engine=follow(process.network, process.sockets, process.identity, process.mailbox),
            subscribe=lambda link: subscriber(process.sockets, link, EPOCH),
            membership=process.membership(Control),
        )
        await actor.run()
        await process.network.close()

    asyncio.run(run())


def executor_of(kind: str, process: Process, running: int, step_ms: float) -> Executor:
    """The executor, on this process's thread or before the worker's process."""
    names = ["engine-0" if kind == "inline" else "worker-0-0"]
    ranks = Ranks(names, step_timeout_s=300.0, tick_s=Pulse(10.0).beat_s)
    if kind == "inline":
        return InlineExecutor(lambda: build(running, step_ms), ranks)
    executor, _ = lead(process.network, process.sockets, process.identity, ranks, EPOCH)
    return executor


async def engine(
    directory: str, kind: str, running: int, steps: int, step_ms: float, *, ahead: bool
) -> list[list[int]]:
    """Runs an EngineCore until all requests have ended; gives its worker's times."""
    process = Process(directory, "engine", "engine-0")
    executor = executor_of(kind, process, running, step_ms)
    decisions = scheduler(running, steps, ahead=ahead)
    core = EngineCore(
        process.name,
        process.mailbox,
        replica=0,
        scheduler=decisions,
        vocab_size=MODEL.vocab_size,
        executor=executor,
        balancer=process.link("balancer"),
        detokenizers={0: process.link("detokenizer-0")},
        membership=process.membership(),
        announcement=ReplicaAnnounced(0, decisions.kv_capacity_tokens, running),
    )
    await core.run()
    [times] = await executor.collective_rpc("times", timeout_s=10)
    await executor.stop()
    await process.network.close()
    return times


def overlap(kind: str, running: int, steps: int, step_ms: float, *, ahead: bool) -> dict[str, Any]:
    """What a worker waits for an EngineCore with so many running requests, between two steps."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        ended = spawn.Event()
        others = [spawn.Process(target=peers, args=(directory, running, steps, ended))]
        if kind == "broadcast":
            others.append(spawn.Process(target=worker, args=(directory, running, step_ms)))
        for other in others:
            other.start()
        times = asyncio.run(engine(directory, kind, running, steps, step_ms, ahead=ahead))
        ended.set()
        for other in others:
            other.join(10)
    busy, gaps = ([value / 1e3 for value in column] for column in zip(*times, strict=True))
    return {
        "executor": kind,
        "async": ahead,
        "step_ms": step_ms,
        "busy_us": statistics.median(busy),
        "gap_us": statistics.median(gaps),
        "gap_p99_us": percentile(gaps, 0.99),
        "waiting_share": sum(gaps) / (sum(gaps) + sum(busy)),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Prints rows as a table."""
    print(" ".join(f"{name:>14}" for name in rows[0]))
    for row in rows:
        cells = (f"{value:14,.3f}" if isinstance(value, float) else f"{value!s:>14}" for value in row.values())
        print(" ".join(cells))


def main() -> None:
    """Runs both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[8, 64, 256, 1024], help="for the first table")
    parser.add_argument("--step-ms", type=float, nargs="*", default=[2.0, 5.0, 10.0], help="for the second")
    parser.add_argument("--running", type=int, default=64, help="requests, for the second")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, help="a file for the results")
    asked = parser.parse_args()
    results = {"own_time": [own_time(rows, asked.steps) for rows in asked.rows], "overlap": []}
    show(results["own_time"])
    for kind in EXECUTORS:
        for step_ms in asked.step_ms:
            for ahead in (False, True):
                results["overlap"].append(overlap(kind, asked.running, asked.steps, step_ms, ahead=ahead))
    show(results["overlap"])
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
