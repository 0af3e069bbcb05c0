"""How soon a full server says so: the time from a request to its 429, beside that of `/health`, in turn, in one run.

    python benchmarks/refusal.py [--waiting 10] [--rounds 200] [--step-ms 20] [--json FILE]

Starts a server of the null model that runs one request at a time and lets `--waiting` wait; one more is refused. Each
request is sent on a connection of its own, as many clients send theirs, and its answer is read to the end.
"""

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

READY_S = 60.0
TOO_MANY = 429


@contextlib.contextmanager
def server(waiting: int, step_ms: float) -> Iterator[int]:
    """The port of a server that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    options = {"model-impl": "null", "null-step-ms": step_ms, "max-num-seqs": 1, "max-waiting": waiting, "port": port}
    command = ["actorlm", "up", *(f"--{name}={value}" for name, value in options.items())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_S
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server does not start")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def is_ready(port: int) -> bool:
    """Whether it takes requests."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready"):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[float, int]:
    """Milliseconds from before the connection to the end of the answer, and its status."""
    began = time.perf_counter()
    with contextlib.closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return 1e3 * (time.perf_counter() - began), response.status


def measure(port: int, rounds: int) -> dict[str, list[float]]:
    """The times of both, in turn, while the queue is full."""
    body = json.dumps({"model": "null", "prompt": [1], "max_tokens": 1}).encode()
    times: dict[str, list[float]] = {"429": [], "/health": []}
    for _ in range(rounds):
        milliseconds, status = ask(port, "POST", "/v1/completions", body)
        if status != TOO_MANY:
            raise SystemExit(f"the server was not full: {status}")
        times["429"].append(milliseconds)
        times["/health"].append(ask(port, "GET", "/health")[0])
    return times


def fill(port: int, count: int) -> list[HTTPConnection]:
    """Streams that go on until their connections are closed. The first runs, the others wait."""
    going_on = []
    for _ in range(count):
        connection = HTTPConnection("127.0.0.1", port)
        body = {"model": "null", "prompt": [1], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        going_on.append(connection)
        time.sleep(0.1)  # each reaches the queue
    return going_on


def run(waiting: int, step_ms: float, rounds: int) -> dict[str, list[float]]:
    """Fills the queue, asks, and leaves."""
    with server(waiting, step_ms) as port:
        going_on = fill(port, waiting + 1)
        try:
            return measure(port, rounds)
        finally:
            for connection in going_on:
                connection.close()


def main() -> None:
    """Prints medians and the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--json", type=Path, help="a file for the results")
    asked = parser.parse_args()
    times = run(asked.waiting, asked.step_ms, asked.rounds)
    for what, found in times.items():
        p99 = statistics.quantiles(found, n=100, method="inclusive")[98]
        print(f"{what:>8}: median {statistics.median(found):.2f} ms, p99 {p99:.2f} ms, worst {max(found):.2f} ms")
    if asked.json:
        asked.json.write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
