"""Processes whose event loop turns while nothing moves: they are found out, named and replaced."""

import os
import re

import pytest
from streaming import Streaming
from tree import until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
IMPATIENT = ("--heartbeat-timeout-s", 3, "--stall-timeout-s", 3, "--max-restarts", 100)

STUCK = """
from pathlib import Path

def setproctitle(title):
    stuck = Path("{flag}")
    if title == "actorlm engine-0":
        from actorlm.scheduling.core import Core
        next_step = Core.next_step
        Core.next_step = lambda self: None if stuck.exists() else next_step(self)
    if title == "actorlm frontend-0":
        import asyncio
        from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
        run_asgi = RequestResponseCycle.run_asgi
        async def run(self, app):
            while stuck.exists():
                await asyncio.sleep(0.1)
            await run_asgi(self, app)
        RequestResponseCycle.run_asgi = run
"""


@pytest.mark.parametrize(
    ("victim", "what"), [("engine-0", "requests"), ("frontend-0", "HTTP requests")], ids=["engine", "frontend"]
)
def test_a02_a_process_that_does_nothing_is_replaced(start, tmp_path, victim, what):
    """Its heartbeats come all the time. The flag goes with the life that was stuck."""
    flag = tmp_path / "stuck"
    source = STUCK.replace("{flag}", str(flag)).replace(
        "engine-0" if victim == "frontend-0" else "frontend-0", "nobody"
    )
    (tmp_path / "setproctitle.py").write_text(source)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    tree = start(*NULL, *IMPATIENT, "--null-step-ms", 5, env={"PYTHONPATH": path})
    tree.sentinel()
    flag.touch()
    stream = Streaming(tree, max_tokens=5)
    why = rf"\d+ {what} waited for \d+ s and none was dealt with \(--stall-timeout-s\)"
    until(lambda: re.search(rf"lost {victim} \(pid \d+\): killed by SIGKILL \({why}", tree.log), 10)
    flag.unlink()
    until(lambda: "ready again" in tree.log, 10)
    tree.sentinel()
    stream.join()
    assert len(re.findall("^lost ", tree.log, re.MULTILINE)) == 1, tree.log


def test_a_busy_process_is_healthy(start):
    """However much waits: a hundred prompts at once, one at a time, with less patience than they take together."""
    tree = start(*NULL, *IMPATIENT, "--null-step-ms", 100, "--max-num-seqs", 1)
    streams = [Streaming(tree, prompt=str(number), max_tokens=1) for number in range(100)]
    for stream in streams:
        assert stream.join(60) == "done"
    assert "lost" not in tree.log
