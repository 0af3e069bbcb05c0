"""What `actorlm up` shows, and that nobody has to watch."""

import os
import subprocess
import sys

SCRIPT = """
import os
import sys
import structlog
from actorlm.log import configure_logging
from actorlm.screen import Screen
configure_logging("info", "test")
log = structlog.get_logger()
screen = Screen()
screen.line("first")
sys.stdin.read()
for _ in range(3):
    screen.line("nobody reads this")
    screen.phase("engine-0", "import", 1.0)
    log.warning("nor this")
screen.ready("on port 8000")
os._exit(0)  # as every process of a tree ends
"""


def test_a_reader_that_leaves_does_not_end_the_process():
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        assert os.read(reader, 100) == b"first\n"
        os.close(reader)
        process.communicate(b"")
    assert process.returncode == 0


def test_phases_and_readiness_are_lines(capfd):
    from actorlm.screen import Screen

    times = iter([0.0, 2.5])
    screen = Screen(lambda: next(times))
    screen.phase("engine-0", "load weights", 1.234)
    screen.bar("engine-0", 1, 2)
    screen.ready("http://[::1]:8000 serves m")
    assert capfd.readouterr().err.splitlines() == [
        "      engine-0  load weights  1.2 s",
        "ready after 2.5 s: http://[::1]:8000 serves m",
    ]
