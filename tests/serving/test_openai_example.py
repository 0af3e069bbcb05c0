"""The example of OpenAI's SDK runs, and says what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tree import PATIENCE

pytestmark = [pytest.mark.serving]

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_sdk.py"


def test_openai_sdk(null_tree):
    done = subprocess.run(
        [sys.executable, EXAMPLE, null_tree.url], capture_output=True, text=True, timeout=20 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"^0: .* \((stop|length)\)\n1: .*\n2: .*\n\d+ \+ \d+ tokens\n\Z", done.stdout, re.MULTILINE)
    null_tree.settled()
