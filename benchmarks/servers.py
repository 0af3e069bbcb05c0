"""A server and a peer on one machine, as their clients see them, in interleaved rounds.

    python benchmarks/servers.py --ours http://127.0.0.1:8000 4711 --peer http://127.0.0.1:8001 4712 [--work NAME ...]

Each server is given by its URL and the pid of its topmost process. Both run the same model; each round sends the same
traffic to one and then to the other by `actorlm bench serve`, while the processes of the one that is not asked are
stopped (SIGSTOP), so that it takes nothing of the machine. Prints each pair, then medians.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

WORK = {
    "one": ("--num-prompts", "1", "--input-len", "16", "--output-len", "128", "--warmup", "1"),
    "many": ("--num-prompts", "64", "--input-len", "128", "--output-len", "64"),
    "shared": ("--num-prompts", "64", "--input-len", "544", "--output-len", "32", "--shared-prefix", "512"),
    "control": (
        *("--num-prompts", "256", "--input-len", "16", "--output-len", "64"),
        *("--prompts", "ids", "--vocab-size", "500"),
    ),
}
"""Options of `actorlm bench serve` of each workload. `control` is for a model so small that it costs nothing."""

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
USER_AND_SYSTEM = slice(11, 13)
"""Where /proc/PID/stat has its times, after the name of the program."""


class Figures(msgspec.Struct, frozen=True):
    """Of one run: output tokens a second, ms to the first token, ms a token after it, and µs of CPU a token."""

    tokens_per_s: float
    first_ms: float
    token_ms: float
    cpu_us: float


class Server:
    """A server that runs already: where it listens, and the topmost of its processes."""

    def __init__(self, name: str, url: str, pid: str) -> None:
        self.name = name
        self.url = url
        self.pid = int(pid)

    @contextmanager
    def alone(self, other: "Server") -> Iterator[None]:
        """While the other one stands still."""
        other.signal(signal.SIGSTOP)
        time.sleep(1)
        try:
            yield
        finally:
            other.signal(signal.SIGCONT)
            time.sleep(1)

    def signal(self, number: int) -> None:
        """To all of its processes."""
        for pid in self._processes():
            os.kill(pid, number)

    def cpu_s(self) -> float:
        """Seconds of CPU that its living processes used so far."""
        return sum(int(ticks) for pid in self._processes() for ticks in _stat(pid)[USER_AND_SYSTEM]) / CLOCK_TICKS

    def _processes(self) -> list[int]:
        parents = {int(entry.name): int(_stat(entry.name)[1]) for entry in Path("/proc").iterdir() if _runs(entry)}
        found = [self.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found


def _runs(entry: Path) -> bool:
    return entry.name.isdigit() and bool(_stat(entry.name))


def _stat(pid: int | str) -> list[str]:
    """What /proc says of a process after its name; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def measure(server: Server, work: str, seed: int) -> Figures:
    """One run of `actorlm bench serve`. Raises CalledProcessError if it failed, SystemExit if a request did."""
    command = ("actorlm", "bench", "serve", "--url", server.url, *WORK[work], "--seed", str(seed), "--json", "-")
    before = server.cpu_s()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cpu = server.cpu_s() - before
    found = json.loads(output)
    complete = found["latency"]["end_to_end_ms"]["count"]
    if complete != found["traffic"]["num_prompts"]:
        raise SystemExit(f"{server.name} completed {complete} of {found['traffic']['num_prompts']} requests")
    return Figures(
        tokens_per_s=found["throughput"]["output_tokens_per_s"],
        first_ms=found["latency"]["time_to_first_token_ms"]["median"],
        token_ms=found["latency"]["time_per_output_token_ms"]["median"],
        cpu_us=cpu / found["throughput"]["output_tokens"] * 1e6,
    )


def compare(ours: Server, peer: Server, work: str, rounds: int) -> None:
    """Prints the pairs of one workload and their medians."""
    pairs = [_pair(ours, peer, work, number) for number in range(rounds)]
    print(_line(f"{work}, medians", *(_medians(side) for side in zip(*pairs, strict=True))))
    faster = statistics.median(a.tokens_per_s / b.tokens_per_s for a, b in pairs)
    cheaper = statistics.median(a.cpu_us / b.cpu_us for a, b in pairs)
    print(f"{work}, ratios of pairs, medians: {faster:.2f} times the tokens/s, {cheaper:.2f} times the CPU a token")


def _pair(ours: Server, peer: Server, work: str, seed: int) -> tuple[Figures, Figures]:
    with ours.alone(peer):
        first = measure(ours, work, seed)
    with peer.alone(ours):
        second = measure(peer, work, seed)
    print(_line(work, first, second), flush=True)
    return first, second


def _medians(runs: Sequence[Figures]) -> Figures:
    columns = zip(*(msgspec.structs.astuple(run) for run in runs), strict=True)
    return Figures(*(statistics.median(column) for column in columns))


def _line(title: str, *pair: Figures) -> str:
    columns = (
        f"{each.tokens_per_s:9.1f} tokens/s, first {each.first_ms:7.1f} ms, then {each.token_ms:6.2f} ms, "
        f"{each.cpu_us:8.1f} µs of CPU"
        for each in pair
    )
    return f"{title}: " + "  |  ".join(columns)


def main() -> None:
    """Prints what the head of this file says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", nargs=2, required=True, metavar=("URL", "PID"))
    parser.add_argument("--peer", nargs=2, required=True, metavar=("URL", "PID"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", nargs="+", choices=WORK, default=["one", "many", "shared"])
    options = parser.parse_args()
    ours, peer = Server("ours", *options.ours), Server("peer", *options.peer)
    for work in options.work:
        compare(ours, peer, work, options.rounds)


if __name__ == "__main__":
    main()
