"""A whole tree, started with `actorlm up` and driven from outside."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from functools import cached_property
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

PATIENCE = float(os.environ.get("TEST_PATIENCE", "3"))
"""Time limits are for a quiet machine; each is multiplied by this."""

TAG = "TEST_TREE"
ACTORLM = str(Path(sys.executable).with_name("actorlm"))


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(condition, seconds, every=0.02):
    """Waits for a true value and returns it; fails after `seconds`, stretched by PATIENCE."""
    deadline = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(every)
    raise AssertionError(f"not within {seconds} s (x {PATIENCE:g}): {condition}")


def connect(url, **options):
    """An HTTP client that threads may share: a pool with bounds closes connections that others have just been given."""
    return httpx.Client(base_url=url, timeout=120, limits=httpx.Limits(keepalive_expiry=None), **options)


def in_parallel(jobs):
    """Runs callables in threads; returns their results or exceptions, in order; TimeoutError for one without end."""
    results = [TimeoutError("it has not ended")] * len(jobs)

    def run(index, job):
        try:
            results[index] = job()
        except Exception as error:  # noqa: BLE001 - a result like any other
            results[index] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return results


class StreamError(Exception):
    """The stream carried an error event; `body` is its error object."""

    def __init__(self, body):
        super().__init__(body["message"])
        self.body = body


class Tree:
    """One `actorlm up`. Processes are found by a variable in their environment, wherever they were re-parented.

    With port 0 the server chooses one; `wait_ready` finds it. `command` comes before the arguments; `popen` are further
    options of subprocess.Popen.
    """

    def __init__(self, *arguments, env=None, cwd=None, port=None, command=(ACTORLM, "up"), **popen):
        self.tag = uuid.uuid4().hex
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the tree
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TOX")}
        options = {"stdout": self._log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL} | popen
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*command, *map(str, arguments), "--port", str(self.port)],
            env=environment | {TAG: self.tag, "TERM": "dumb"} | (env or {}),
            cwd=cwd, start_new_session=True, **options,
        )  # fmt: skip
        self.client = connect(self.url)

    # Life.

    def wait_ready(self, seconds=40):
        def ready():
            assert self.process.poll() is None, f"exited with {self.process.returncode}: {self.log[-2000:]}"
            if self.port == 0 and not self._find_port():
                return False
            with contextlib.suppress(httpx.HTTPError):
                return self.client.get("/ready", timeout=5).status_code == 200

        until(ready, seconds)
        self.ready_after = time.monotonic() - self.started
        return self

    def _find_port(self):
        said = re.search(r"^ready after .*: http://127\.0\.0\.1:(\d+) ", self.log, re.MULTILINE)
        if said:
            self.port = int(said[1])
            self.url = f"http://127.0.0.1:{self.port}"
            self.client.base_url = self.url
        return said

    @property
    def log(self):
        self._log.flush()
        return os.pread(self._log.fileno(), 1 << 22, 0).decode(errors="replace")

    def processes(self):
        """{pid: title} of all living processes of the tree."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{TAG}={self.tag}".encode() in (entry / "environ").read_bytes():
                        title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                        if title:
                            found[int(entry.name)] = title
        return found

    def pid(self, name):
        """The pid of one actor's process, by its title."""
        return next(pid for pid, title in self.processes().items() if title == f"actorlm {name}")

    def kill(self, name, number=signal.SIGKILL):
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def signal_all(self, number):
        """To each of its processes; some end of it before their turn."""
        for pid in sorted(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, seconds=20):
        """Waits for `actorlm up` to end; returns its exit status."""
        return self.process.wait(seconds * PATIENCE)

    def stop(self, number=signal.SIGTERM, seconds=20):
        """Signals the supervisor; returns the exit status and the processes that are left."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.wait(seconds)
        return status, self.processes()

    def close(self):
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.signal_all(signal.SIGKILL)
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Requests.

    @cached_property
    def model(self):
        return self.client.get("/v1/models").json()["data"][0]["id"]

    def post(self, path, body, **options):
        return self.client.post(path, json=body, **options)

    def complete(self, prompt, path="/v1/completions", **fields):
        """One completion, not streamed; returns the whole body."""
        response = self.post(path, {"model": self.model, "prompt": prompt} | fields)
        assert response.status_code == 200, response.text
        return response.json()

    def text(self, prompt, **fields):
        return self.complete(prompt, **fields)["choices"][0]["text"]

    def chat(self, content, **fields):
        body = {"model": self.model, "messages": [{"role": "user", "content": content}]} | fields
        response = self.post("/v1/chat/completions", body)
        assert response.status_code == 200, response.text
        return response.json()

    def events(self, path, body, **options):
        """The events of a stream. Raises StreamError for an error event, AssertionError if it has no end."""
        with self.client.stream("POST", path, json={"model": self.model, "stream": True} | body, **options) as response:
            if response.status_code != 200:
                response.read()
                raise AssertionError(f"{response.status_code}: {response.text}")
            for line in response.iter_lines():
                if not line:
                    continue
                assert line.startswith("data: "), line
                if line == "data: [DONE]":
                    return
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise StreamError(event["error"])
                yield event
        raise AssertionError("the stream ended without [DONE]")

    def streamed_text(self, prompt, **fields):
        events = self.events("/v1/completions", {"prompt": prompt} | fields)
        return "".join(event["choices"][0]["text"] for event in events if event["choices"])

    def sentinel(self):
        """A plain request is answered: whatever came before has done no harm."""
        body = {"model": self.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        response = self.post("/v1/chat/completions", body, timeout=10 * PATIENCE)
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["completion_tokens"] >= 1

    # What it says of itself.

    def metrics(self):
        """{(name, labels without model_name): value}, labels as a sorted tuple of pairs."""
        samples = {}
        for family in text_string_to_metric_families(self.client.get("/metrics").text):
            for sample in family.samples:
                labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "model_name"))
                samples[sample.name.removeprefix("actorlm:"), labels] = sample.value
        return samples

    def total(self, name):
        """The sum of all series of one name."""
        return sum(value for (found, _), value in self.metrics().items() if found == name)

    def settled(self, seconds=10):
        """Nothing runs, nothing waits, and the KV cache is idle."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        until(lambda: all(self.total(name) == 0 for name in names), seconds)

    def memory_kib(self, pid):
        """RssAnon and VmSwap of a process."""
        status = Path(f"/proc/{pid}/status").read_text()
        return sum(int(value) for value in re.findall(r"(?:RssAnon|VmSwap):\s+(\d+)", status))

    def maps(self, pid, what):
        return what in Path(f"/proc/{pid}/maps").read_text()
