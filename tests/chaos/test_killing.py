"""Each way to kill ends any process, with the exit status or signal that it names."""

import signal
import subprocess
import sys

import pytest
from killing import STATUS, kill

BUSY = "print('here', flush=True)\nwhile True: pass"
ASLEEP = """
import threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("here", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("code", [BUSY, ASLEEP], ids=["busy", "asleep"])
@pytest.mark.parametrize(
    ("kind", "status"), [("SIGKILL", -signal.SIGKILL), ("SIGSEGV", -signal.SIGSEGV), ("exit", STATUS)]
)
def test_who_is_killed_is_dead(code, kind, status):
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as victim:
        victim.stdout.readline()
        kill(victim.pid, kind)
        assert victim.wait(10) == status


def test_who_is_gone_cannot_be_killed():
    with subprocess.Popen([sys.executable, "-c", ""]) as victim:
        victim.wait(10)
    for kind in ("SIGKILL", "exit"):
        with pytest.raises(ProcessLookupError):
            kill(victim.pid, kind)
