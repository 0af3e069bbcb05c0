"""Times one step's way to all workers and back: this package's broadcast, and queues of multiprocessing, in turn.

    python benchmarks/broadcast.py [--workers 1 2 4 8] [--rounds 200] [--json FILE]

A payload goes to processes that only read; the first of them, as the output rank, answers with a StepDone. The
broadcast is encoded once, and decoded by its readers. The queues are as one would use them first: a queue to each
worker, into which the same object is put, and one for answers. Between two rounds there is a pause, in which the other
workers finish. `round` is the time to the answer, `sender` the CPU time of the sending process, with its queues'
threads: microseconds, medians; 90th percentiles in brackets.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zmq

from actorlm.messages.catalog import INBOXES
from actorlm.messages.executor import StepDone, WorkerReady
from actorlm.messages.worker import AddRequest, CallMethod, RunStep, StopWorker, Sync
from actorlm.runtime.broadcast import Publisher, Subscriber, draw_topic
from actorlm.sampling import SamplingParams
from actorlm.wire import int32

EPOCH = 1
BATCH = 10
"""Round trips that one way makes before the other has its turn."""
PAUSE_S = 0.001
"""Between two rounds, and once more for each worker."""
PATIENCE_MS = 20_000


def realistic_step() -> RunStep:
    """256 requests that decode, of which 16 get a block; one enters with a prompt of 512 tokens, one leaves."""
    rows = range(256)
    request = AddRequest(
        256, int32(range(512)), 512, SamplingParams(max_tokens=256, temperature=0.7, top_p=0.9, seed=1)
    )
    return RunStep(
        step=0,
        released=int32([257]),
        added=(request,),
        block_slots=int32([*range(16), *[256] * 32]),
        block_ids=int32(range(48)),
        slots=int32([*rows, 256]),
        starts=int32([1000] * 256 + [0]),
        counts=int32([1] * 256 + [512]),
        sampled=int32([*rows, 256]),
    )


PAYLOADS = {"4 KiB": CallMethod(0, "describe", bytes(4096)), "RunStep of 257 rows": realistic_step()}
ANSWER = StepDone(0, int32(range(257)), 0)


class Way(Protocol):
    """One way to reach all workers."""

    def round_trip(self, payload: Any) -> None:
        """Returns when the first worker has answered."""


def read_broadcast(rank: int, address: str, topic: bytes) -> None:
    """A worker behind the broadcast."""
    subscriber = Subscriber[Any](f"{address}-steps", epoch=EPOCH, topic=topic, inbox=INBOXES["worker"])
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(f"{address}-results")
    encode = msgspec.msgpack.Encoder().encode
    while not isinstance(message := subscriber.receive(), StopWorker):
        if isinstance(message, Sync):
            push.send(encode(WorkerReady(rank, EPOCH, "", 0)))
        elif rank == 0:
            push.send(encode(ANSWER))
    push.close()
    subscriber.close()


class Broadcast:
    """XPUB to all, PULL from all."""

    def __init__(self, address: str, topic: bytes, workers: int) -> None:
        self._publisher = Publisher[Any](f"{address}-steps", epoch=EPOCH, topic=topic, inbox=INBOXES["worker"])
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.bind(f"{address}-results")
        self._decode = msgspec.msgpack.Decoder(WorkerReady | StepDone).decode
        ready: set[int] = set()
        while len(ready) < workers:
            self._publisher.publish(Sync(EPOCH))
            while self._pull.poll(50):
                message = self._decode(self._pull.recv())
                assert isinstance(message, WorkerReady)
                ready.add(message.rank)

    def round_trip(self, payload: Any) -> None:
        """Encodes once."""
        self._publisher.publish(payload)
        assert self._pull.poll(PATIENCE_MS)
        assert isinstance(self._decode(self._pull.recv()), StepDone)

    def close(self) -> None:
        """Ends the workers."""
        self._publisher.publish(StopWorker())
        self._publisher.close(flush_s=5.0)
        self._pull.close()
        self._context.term()


def read_queue(rank: int, steps: "multiprocessing.Queue[Any]", results: "multiprocessing.Queue[Any]") -> None:
    """A worker behind queues."""
    while (steps.get()) is not None:
        if rank == 0:
            results.put(ANSWER)


class Queues:
    """A queue to each worker, one from all."""

    def __init__(self, steps: "list[multiprocessing.Queue[Any]]", results: "multiprocessing.Queue[Any]") -> None:
        self._steps = steps
        self._results = results

    def round_trip(self, payload: Any) -> None:
        """Pickles once for each worker."""
        for queue in self._steps:
            queue.put(payload)
        assert isinstance(self._results.get(timeout=PATIENCE_MS / 1000), StepDone)


@contextmanager
def broadcast(directory: str, workers: int) -> Iterator[Broadcast]:
    """With its processes."""
    spawn, topic, address = multiprocessing.get_context("spawn"), draw_topic(), f"ipc://{directory}/b{workers}"
    processes = [spawn.Process(target=read_broadcast, args=(rank, address, topic)) for rank in range(workers)]
    for process in processes:
        process.start()
    way = Broadcast(address, topic, workers)
    yield way
    way.close()
    for process in processes:
        process.join()


@contextmanager
def queues(workers: int) -> Iterator[Queues]:
    """With their processes."""
    spawn = multiprocessing.get_context("spawn")
    steps, results = [spawn.Queue() for _ in range(workers)], spawn.Queue()
    processes = [spawn.Process(target=read_queue, args=(rank, steps[rank], results)) for rank in range(workers)]
    for process in processes:
        process.start()
    way = Queues(steps, results)
    yield way
    for queue in steps:
        queue.put(None)
    for process in processes:
        process.join()


class Times(msgspec.Struct):
    """Microseconds of each round."""

    rounds: list[float] = []
    sender: list[float] = []


def run_batch(way: Way, payload: Any, workers: int) -> Times:
    """One way's turn."""
    times = Times()
    for _ in range(BATCH):
        began, cpu_began = time.perf_counter_ns(), time.process_time_ns()
        way.round_trip(payload)
        times.rounds.append((time.perf_counter_ns() - began) / 1000)
        time.sleep(PAUSE_S * (1 + workers))
        times.sender.append((time.process_time_ns() - cpu_began) / 1000)
    return times


def measure(ways: dict[str, Way], payload: Any, rounds: int, workers: int) -> dict[str, Times]:
    """Each way's times, taken in turn after a batch of each to warm up."""
    times = {name: Times() for name in ways}
    for turn in range(rounds // BATCH + 1):
        for name, way in ways.items():
            batch = run_batch(way, payload, workers)
            if turn:
                times[name].rounds += batch.rounds
                times[name].sender += batch.sender
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and 90th percentile."""
    return {"median": statistics.median(times), "p90": statistics.quantiles(times, n=10)[-1]}


def cell(found: dict[str, float]) -> str:
    """Of a table."""
    return f"{found['median']:>7.0f} ({found['p90']:>6.0f})"


def main() -> None:
    """Prints a table; writes all medians as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'payload':>20} {'way':>10} {'workers':>8} {'round, µs':>17} {'sender, µs':>17}")
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as directory:
        for workers in options.workers:
            with broadcast(directory, workers) as ours, queues(workers) as theirs:
                ways: dict[str, Way] = {"broadcast": ours, "queues": theirs}
                for name, payload in PAYLOADS.items():
                    for way, times in measure(ways, payload, options.rounds, workers).items():
                        found = {"round_us": summary(times.rounds), "sender_us": summary(times.sender)}
                        rows.append({"payload": name, "way": way, "workers": workers} | found)
                        cells = f"{cell(found['round_us']):>17} {cell(found['sender_us']):>17}"
                        print(f"{name:>20} {way:>10} {workers:>8} {cells}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
