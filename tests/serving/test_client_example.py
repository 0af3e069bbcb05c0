"""The example runs, and says what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from asking import address
from tree import PATIENCE

pytestmark = [pytest.mark.serving]

EXAMPLE = Path(__file__).parents[2] / "examples" / "zeromq_client.py"


def test_zeromq_client(null_tree):
    directory = address(null_tree).removeprefix("ipc://").rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, EXAMPLE, directory], capture_output=True, text=True, timeout=20 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "serves null" in done.stdout
    assert re.search(r"Usage\(prompt_tokens=\d+, completion_tokens=\d+, cached_tokens=\d+\)", done.stdout)
    assert re.search(r"100 requests made \d+ tokens", done.stdout)
    assert "left after" in done.stdout
    null_tree.settled()
