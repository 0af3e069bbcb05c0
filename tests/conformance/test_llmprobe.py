"""llmprobe's assertions about the routes that exist, against the default model; what does not hold yet is listed."""

import json
import subprocess

import pytest
from npm_client import installed
from tree import PATIENCE, Tree

pytestmark = [pytest.mark.serving, pytest.mark.timeout(900 * PATIENCE)]

MUSTS = {"models": 4, "completions": 3, "chat": 73}
"""How many there are on each surface: what is not offered has none, nor has what the model's answers leave open."""

FAILING = {"chat-tool-stream-reassembly: chat-tool-stream-status", "chat-tool-result-turn: chat-tool-result-status"}
"""Those that fail, because tools are refused. One that passes leaves this list."""

NOT_OFFERED = {
    "chat-json-mode", "chat-structured-markers", "chat-structured-outputs", "chat-structured-terminates",
    "chat-parallel-tools", "chat-parallel-tools-off", "chat-tool-args-literal-delimiter", "chat-tool-serialization",
    "chat-rate-limit-headers", "chat-reasoning", "chat-vision",
}  # fmt: skip
"""Tests of features that the server refuses by name, or that are not there to be found."""

LEFT_OPEN = {"chat-assistant-prefill", "chat-reasoning-cap", "chat-tool-arg-types"}
"""Tests that need an answer which this small model does not give."""


@pytest.fixture(scope="module")
def conformance():
    """Its report on conformance, with the results on these surfaces alone."""
    program = installed("llmprobe") / "node_modules" / ".bin" / "llmprobe"
    with Tree("smollm2-135m") as tree:
        tree.wait_ready()
        command = [program, f"{tree.url}/v1", "-m", tree.model, "--full", "--no-bench", "--no-save", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800 * PATIENCE, check=False)
        assert done.returncode in (0, 1), done.stderr  # 1 says that not everything holds
        tree.settled()
    report = json.loads(done.stdout)["conformance"]
    report["results"] = [result for result in report["results"] if result["surface"] in MUSTS]
    return report


def with_outcome(conformance, outcome):
    return {result["id"] for result in conformance["results"] if result["outcome"] == outcome}


def test_every_must(conformance):
    failures = [(result["id"], failure) for result in conformance["results"] for failure in result["failures"]]
    assert {f"{test}: {one['id']}" for test, one in failures if one["severity"] == "MUST"} == FAILING
    assert with_outcome(conformance, "fail") == {name.split(":")[0] for name in FAILING}
    counts = {one["surface"]: (one["passed"], one["total"]) for one in conformance["bySurface"]}
    missing = {"models": 0, "completions": 0, "chat": len(FAILING)}
    assert counts == {surface: (total - missing[surface], total) for surface, total in MUSTS.items()}


def test_nothing_else_is_left_out(conformance):
    assert with_outcome(conformance, "unsupported") == NOT_OFFERED
    assert with_outcome(conformance, "inconclusive") <= LEFT_OPEN
    assert with_outcome(conformance, "skipped") == set()


def test_nothing_is_warned_of(conformance):
    assert conformance["warnings"] == []
    assert conformance["nits"] == []
