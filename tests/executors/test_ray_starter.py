"""What runs inside a Ray actor, without Ray."""

import json
import os

import psutil

from actorlm.executors.ray_starter import Starter
from actorlm.runtime.identity import machine


def test_a_process_starts_here_and_its_end_is_told():
    starter = Starter()
    started = json.loads(starter.start(machine(), "worker-0-0", "{}", json.dumps({"A": "b"})))
    child = psutil.Process(started["pid"])
    assert child.ppid() == os.getpid()
    assert child.environ()["A"] == "b"
    assert starter.wait().startswith("ValidationError: Object missing required field `process`")


def test_nothing_starts_on_another_machine():
    before = psutil.Process().children()
    assert json.loads(Starter().start("another", "worker-0-0", "{}", "{}"))["pid"] == 0
    assert psutil.Process().children() == before
