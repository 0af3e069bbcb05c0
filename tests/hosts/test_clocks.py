"""Hosts whose clocks disagree."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HOUR_S = 3600


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    """Gives the environment in which the time of day is so many seconds off."""
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).with_name("clock.c")
    built = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=False)
    if built.returncode:
        pytest.skip("there is no C compiler")
    return lambda offset_s: {"LD_PRELOAD": str(library), "CLOCK_OFFSET_S": str(offset_s)}


def test_the_clock_is_off(clock):
    command = [sys.executable, "-c", "import time; print(time.time())"]
    said = subprocess.check_output(command, env=os.environ | clock(-HOUR_S), text=True)
    assert float(said) == pytest.approx(time.time() - HOUR_S, abs=60)


@pytest.mark.parametrize("offset_s", [HOUR_S, -HOUR_S])
def test_clocks_an_hour_apart_and_hosts_that_come_back(up, clock, offset_s):
    up.write({"a": "devices = [0]", "b": "devices = [0]"}, "[parallel]\ndata = 2\n")
    a, b = up("a"), up("b", env=clock(offset_s))
    a.wait_ready()
    texts = [a.text(f"number {number}", max_tokens=4, temperature=0) for number in range(6)]
    b.kill("engine-1")
    a.wait_for("ready again")
    b.signal_all(9)
    a.wait_for("lost host b")
    up("b")  # the clock is right again, which may be an hour earlier than before
    a.wait_for("ready again", times=2, seconds=30)
    assert [a.text(f"number {number}", max_tokens=4, temperature=0) for number in range(6)] == texts
