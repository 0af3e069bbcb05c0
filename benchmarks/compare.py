"""actorlm beside vLLM, llama.cpp and OpenVINO GenAI: the same work, one machine, one run.

    python benchmarks/compare_install.py DIRECTORY      once: environments and model files
    python benchmarks/compare.py --peers DIRECTORY [--rows one prefill ...] [--only actorlm-float32 llama-q8 ...]

`peers/table.py` says what is compared. Every server is started alone (start, idle memory), then all stand still
(SIGSTOP) but the one that is asked. Rounds are interleaved: each gives the same new prompts to one server after the
other, greedily and ignoring ends of text. Servers are asked over HTTP by streaming clients of this process; OpenVINO
GenAI computes in a process of its own without HTTP, which costs it nothing. Between rows the machine's read bandwidth
and its rates of multiplication are measured. Each round says how much CPU time others took: measure while that is
nothing. Writes everything to --json; `compare_plot.py` makes tables and a picture of it.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from peers.machine import Rates, commit, describe, versions
from peers.model import model, weight_bytes
from peers.process import OthersCpu
from peers.prompts import Prompts
from peers.results import Results, Round, Started
from peers.server import PeerFailed, Server
from peers.table import PEERS, ROWS, WORK, Peer, Row, Work

from actorlm.bench.distribution import distribution
from actorlm.bench.recording import Outcome

FIRST_PORT = 8300
WARM_UP = Work(8, 64, 8)
AWAKE = Work(1, 16, 4)
SETTLE_S = 0.3
RESULTS = Path(__file__).parent / "results" / "peers.json"


def start(peers: Sequence[Peer], directory: Path, logs: Path, stack: ExitStack, results: Results) -> list[Server]:
    """Starts each as often as its row says, alone, and keeps the last; each stands still after that."""
    servers = []
    for index, peer in enumerate(peers):
        for number in range(peer.starts):
            server = Server(peer, directory, FIRST_PORT + index, logs / f"{peer.name}.log")
            results.started.append(
                Started(peer.name, server.ready_s, server.idle_mib, server.command, server.environment)
            )
            print(f"{peer.name}: ready after {server.ready_s:.2f} s, {server.idle_mib:,.0f} MiB", flush=True)
            if number < peer.starts - 1:
                server.end()
        servers.append(stack.enter_context(server))
        server.tree.signal(signal.SIGSTOP)
    return servers


@contextmanager
def asked(server: Server, prompts: Prompts) -> Iterator[None]:
    """Only this server runs, and has had a small request since it stood still."""
    with server.tree.awake():
        time.sleep(SETTLE_S)
        server.answers(prompts.make(AWAKE), AWAKE)
        yield


def measure(server: Server, row: Row, number: int, texts: Sequence[str], prompts: Prompts) -> Round:
    """One round of one server."""
    with asked(server, prompts):
        others = OthersCpu(lambda: server.tree.cpu_s() + time.process_time())
        before = server.tree.cpu_s()
        outcomes = server.answers(texts, WORK[row])
        cpu = server.tree.cpu_s() - before
        taken = others.seconds()
    return figures(server.peer.name, row, number, outcomes, cpu, taken)


def measure_at_last(server: Server, row: Row, number: int, texts: Sequence[str], prompts: Prompts) -> Round:
    """The same. A server that has failed (vLLM's does not bear to stand still for minutes) starts again, once."""
    try:
        return measure(server, row, number, texts, prompts)
    except PeerFailed as failure:
        print(f"{failure}; starting it again", flush=True)
    server.restart()
    server.answers(prompts.make(WARM_UP), WARM_UP)
    server.tree.signal(signal.SIGSTOP)
    return msgspec.structs.replace(measure(server, row, number, texts, prompts), restarted=True)


def figures(peer: str, row: Row, number: int, outcomes: Sequence[Outcome], cpu_s: float, others_s: float) -> Round:
    """What a round comes to."""
    seconds = max(one.ended for one in outcomes) - min(one.began for one in outcomes)
    tokens = sum(one.output_tokens for one in outcomes)
    gaps = distribution([1000 * gap for one in outcomes for gap in one.gaps])
    firsts = distribution([one.ended - one.began if one.first is None else one.first for one in outcomes])
    assert firsts is not None, "a round has requests"
    return Round(
        peer=peer,
        row=row,
        round=number,
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        first_s=firsts.median,
        gap_median_ms=gaps.median if gaps else None,
        gap_p99_ms=gaps.p99 if gaps else None,
        prompt_tokens=sum(one.prompt_tokens for one in outcomes),
        output_tokens=tokens,
        cpu_s=cpu_s,
        others_cores=others_s / seconds,
    )


def run_row(row: Row, servers: Sequence[Server], prompts: Prompts, options: argparse.Namespace) -> Iterator[Round]:
    """All rounds of one row. A server that has used up its time for the row has no more rounds of it."""
    spent = dict.fromkeys((server.peer.name for server in servers), 0.0)
    for number in range(min(WORK[row].rounds, options.rounds)):
        texts = prompts.make(WORK[row])
        first = number % len(servers)
        for server in (*servers[first:], *servers[:first]):
            name = server.peer.name
            if row in server.peer.skips or spent[name] * (number + 1) > options.budget * max(number, 1):
                continue
            one = measure_at_last(server, row, number, texts, prompts)
            spent[name] += one.seconds
            print(
                f"{row} {number}: {name}: {one.tokens_per_s:.1f} tokens/s, first {one.first_s:.3f} s, "
                f"p99 {one.gap_p99_ms or 0:.1f} ms, {one.prompt_tokens} in, others {one.others_cores:.2f} cores",
                flush=True,
            )
            yield one


def run(options: argparse.Namespace, peers: Sequence[Peer], logs: Path) -> None:
    """Everything that was asked for."""
    directory: Path = options.peers
    prompts = Prompts(directory / "models" / "q4_1.gguf", random.Random(options.seed))
    results = Results(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit(),
        command=["python", *sys.argv],
        machine=describe(),
        versions=versions(directory),
        peers=list(peers),
        model=model(directory / "models" / "f32.gguf"),
        weight_bytes=weight_bytes(directory / "models"),
    )
    with ExitStack() as stack:
        servers = start(peers, directory, logs, stack, results)
        rates = Rates()
        for server in servers:
            with server.tree.awake():
                server.answers(prompts.make(WARM_UP), WARM_UP)
        for row in (row for row in ROWS if row in options.rows and row in WORK):
            results.rates.append(rates.measure())
            for one in run_row(row, servers, prompts, options):
                results.rounds.append(one)
                save(results, options.json)
        results.rates.append(rates.measure())
        results.used_mib = {server.peer.name: server.tree.memory_mib() for server in servers}
        save(results, options.json)


def save(results: Results, path: Path) -> None:
    """After each round, so that a run that breaks off is not lost."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def main() -> None:
    """Does what the head of this file says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="at most, of each row")
    parser.add_argument("--starts", type=int, default=3, help="at most, of each server")
    parser.add_argument("--budget", type=float, default=75.0, help="seconds of one server for one row's rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    chosen = [peer for peer in PEERS if options.only is None or peer.name in options.only]
    peers = [msgspec.structs.replace(peer, starts=min(peer.starts, options.starts)) for peer in chosen]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    logs = tempfile.mkdtemp(prefix="compare-")
    print(f"{len(peers)} servers, logs in {logs}, load {os.getloadavg()[0]:.2f}", flush=True)
    run(options, peers, Path(logs))
    print(f"{options.json} written after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
