"""The `openai` package of npm: openai_node/sdk.test.mjs, by node's own test runner."""

import os
import re
import subprocess

import pytest
from npm_client import installed
from tree import PATIENCE, Tree

pytestmark = [pytest.mark.serving]

KEY = "sk-test-0123456789"


@pytest.fixture(scope="module")
def tree():
    with Tree("--model-impl", "null", "--null-step-ms", 5, env={"ACTORLM_API_KEY": KEY}) as tree:
        tree.client.headers["authorization"] = f"Bearer {KEY}"
        yield tree.wait_ready()


def test_openai_node(tree):
    """All of its tests pass; none is left out."""
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", "sdk.test.mjs"],
        cwd=installed("openai_node"), env=os.environ | {"OPENAI_BASE_URL": f"{tree.url}/v1", "OPENAI_API_KEY": KEY},
        capture_output=True, text=True, timeout=30 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^# pass 19$", done.stdout, re.MULTILINE), done.stdout
