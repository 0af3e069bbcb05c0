"""One server: how each family is started, when it is ready, and what it answers to a round's prompts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self
from urllib.error import URLError
from urllib.request import urlopen

import uvloop

from actorlm.bench.load import Load
from actorlm.bench.recording import Outcome
from actorlm.remote.server import Server as HttpServer
from peers.process import Tree
from peers.table import THREADS, Peer, Work

MAX_LEN = 2048
SLOTS = 64
SLOT_TOKENS = 1280
"""llama.cpp reserves them for each request: 1,025 at the most here, and it wants multiples of 256."""
CACHE_GIB = 2
START_TIMEOUT_S = 600.0
POLL_S = 0.02
HERE = Path(__file__).parent


def command(peer: Peer, directory: Path, port: int) -> list[str]:
    """What is started. `directory` has a virtual environment for each family but ours, and `models`."""
    model = str(directory / "models" / peer.model)
    match peer.family:
        case "actorlm":
            serve = [sys.executable, "-m", "actorlm", "up", model, "--threads", str(THREADS), "--port", str(port)]
        case "vllm":
            python = str(directory / "vllm" / "bin" / "python")
            serve = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--dtype", "float32"]
            serve += ["--max-model-len", str(MAX_LEN), "--max-num-seqs", str(SLOTS), "--port", str(port)]
            serve += ["--host", "127.0.0.1"]
        case "llama.cpp":
            serve = _llama_command(directory / "llama" / "bin", model, port)
        case "openvino":
            python = str(directory / "openvino" / "bin" / "python")
            serve = [python, str(HERE / "openvino_driver.py"), model, str(THREADS), str(CACHE_GIB)]
    return [*serve, *peer.options]


def _llama_command(programs: Path, model: str, port: int) -> list[str]:
    """The server that was built for this CPU, if there is one, and else that of the wheel, with the same settings."""
    size = [str(SLOTS), str(SLOTS * SLOT_TOKENS)]
    built = programs / "llama-server"
    if not built.exists():
        return [str(programs / "python"), str(HERE / "llama_server.py"), model, str(port), str(THREADS), *size]
    serve = [str(built), "--model", model, "--port", str(port), "--threads", str(THREADS), "--cache-ram", "0"]
    return [*serve, "--parallel", size[0], "--ctx-size", size[1], "--no-kv-unified"]


def environment(peer: Peer, directory: Path) -> dict[str, str]:
    """What is set for it, as its documentation recommends."""
    match peer.family:
        case "vllm":
            return {
                "LD_PRELOAD": str(directory / "vllm" / "lib" / "libiomp5.so"),
                "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
                "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
                "VLLM_NO_USAGE_STATS": "1",
            }
        case "openvino":
            return {"OPENVINO_TELEMETRY_DISABLE": "1"}
        case _:
            return {}


READY = {"actorlm": "/ready", "vllm": "/health", "llama.cpp": "/health"}
"""Paths that answer 200 once requests are."""


class PeerFailed(Exception):
    """A server did not answer as it should; the message says which, and how."""


class Server:
    """A process tree that is ready for requests when this has been made; `ready_s` says after how long."""

    def __init__(self, peer: Peer, directory: Path, port: int, log: Path) -> None:
        """Raises SystemExit if it ends, or is not ready in time."""
        self.peer = peer
        self.url = f"http://127.0.0.1:{port}"
        self.command = command(peer, directory, port)
        self.environment = environment(peer, directory)
        self.log = log
        self._begin()

    def _begin(self) -> None:
        began = time.perf_counter()
        self._process = self._start()
        self.tree = Tree(self._process.pid)
        self._wait(began + START_TIMEOUT_S)
        self.ready_s = time.perf_counter() - began
        self.idle_mib = self.tree.memory_mib()

    def restart(self) -> None:
        """Ends what is left of it, and starts it again."""
        self.end()
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def answers(self, prompts: Sequence[str], work: Work) -> list[Outcome]:
        """Sends all at once. Raises PeerFailed if one fails or has another length than was asked for."""
        driven = self.peer.family == "openvino"
        outcomes = self._drive(prompts, work) if driven else uvloop.run(self._send(prompts, work))
        for one in outcomes:
            if one.failure or one.output_tokens != work.output_len or not one.counted:
                raise PeerFailed(f"{self.peer.name}: {one.failure} {one.message} {one.output_tokens} tokens")
        return outcomes

    def end(self) -> None:
        """Ends it, and waits until all of it has."""
        self.tree.signal(signal.SIGCONT)
        whole = self.tree.pids()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.tree.signal(signal.SIGKILL)
            self._process.wait()
        for pid in whole:
            while Path(f"/proc/{pid}").exists():
                time.sleep(POLL_S)

    def _start(self) -> subprocess.Popen[str]:
        with self.log.open("w") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.peer.family == "openvino" else log,
                stderr=log,
                env=os.environ | self.environment,
                text=True,
                start_new_session=True,
            )

    def _wait(self, until: float) -> None:
        if self.peer.family == "openvino":
            self._line()
            return
        while not _answers(self.url + READY[self.peer.family]):
            if self._process.poll() is not None or time.perf_counter() > until:
                raise SystemExit(f"{self.peer.name} did not start; {self.log} says why")
            time.sleep(POLL_S)

    async def _send(self, prompts: Sequence[str], work: Work) -> list[Outcome]:
        server = HttpServer(self.url)
        model = await server.model()
        requests = [(0.0, server.post("/v1/completions", _fields(model, prompt, work))) for prompt in prompts]
        load = Load(server, requests, max_concurrency=None, clock=time.perf_counter, told=lambda _: None)
        await load.run()
        return load.outcomes

    def _drive(self, prompts: Sequence[str], work: Work) -> list[Outcome]:
        asked = self._pipe(self._process.stdin)
        asked.write(json.dumps({"prompts": list(prompts), "output_len": work.output_len}) + "\n")
        asked.flush()
        answer = json.loads(self._line())
        return [
            Outcome(0.0, times[-1], times, True, None, None, tokens, len(times), True)
            for times, tokens in zip(answer["times"], answer["prompt_tokens"], strict=True)
        ]

    def _line(self) -> str:
        if line := self._pipe(self._process.stdout).readline():
            return line
        raise SystemExit(f"{self.peer.name} ended; {self.log} says why")

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None, "the process was started with pipes"
        return pipe


def _fields(model: str, prompt: str, work: Work) -> dict[str, object]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": work.output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):  # noqa: S310
            return True
    except (URLError, OSError):
        return False
