"""What the engines of a tree record, replays to the same decisions."""

import random
import subprocess
from functools import partial

import pytest
from exchange import PATHS, Exchange, body_of
from tree import ACTORLM, in_parallel, until

pytestmark = [pytest.mark.serving]

COMPLETIONS = PATHS[0]
NULL = ("--model-impl", "null", "--kv-cache-tokens", 256, "--max-num-seqs", 4)


def replay(*arguments):
    return subprocess.run([ACTORLM, "replay", *map(str, arguments)], capture_output=True, text=True, check=False)


def load(tree, number=40):
    """Many at once, some of which leave."""
    draw = random.Random(4)

    def one(seed):
        tokens, prompt = draw.randint(40, 90), f"{seed % 5} secret" * draw.randint(1, 10)
        body = body_of(tree, COMPLETIONS, stream=True, prompt=prompt, max_tokens=tokens, seed=seed, ignore_eos=True)
        exchange = Exchange(tree, COMPLETIONS, body)
        if draw.random() < 0.3:
            exchange.leave_after(3)
        else:
            exchange.response.read()
            exchange.close()

    assert in_parallel([partial(one, seed) for seed in range(number)]) == [None] * number


@pytest.mark.parametrize("redacted", [True, False])
def test_a_tree_replays(start, tmp_path, redacted):
    if redacted:
        tree = start(*NULL, "--null-step-ms", 2, command=(ACTORLM, "record", str(tmp_path)))
    else:
        tree = start(*NULL, "--null-step-ms", 2, "--record-dir", tmp_path, "--no-record-redacted")
    load(tree)
    tree.settled()
    steps = int(tree.total("engine_steps_total"))
    assert tree.total("num_preemptions_total") > 0
    assert tree.stop()[0] == 0
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    ran = replay(file)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{steps:,} steps" in ran.stdout
    assert "every decision is the same" in ran.stdout
    ran = replay(file, "--step", steps // 2, "--no-check")
    assert ran.returncode == 0
    assert f"steps in flight: {steps // 2 - 1}, {steps // 2}" in ran.stdout
    assert "running" in ran.stdout


def test_an_engine_that_is_killed_leaves_a_recording_and_its_successor_begins_another(start, tmp_path):
    tree = start(*NULL, "--null-step-ms", 5, "--record-dir", tmp_path)
    exchange = Exchange(tree, COMPLETIONS, body_of(tree, COMPLETIONS, stream=True, max_tokens=200, ignore_eos=True))
    for _ in range(20):
        next(exchange.raw_events())
    tree.kill("engine-0")
    until(lambda: [file.stat().st_size > 0 for file in tmp_path.glob("*.rec")] == [True, True], 10)
    first, second = sorted(tmp_path.iterdir())
    for file in (first, second):
        ran = replay(file)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 requests" in replay(first).stdout
    exchange.close()


def test_a_directory_that_cannot_be_written_is_refused(start, tmp_path):
    (tmp_path / "file").touch()
    tree = start(*NULL, "--record-dir", tmp_path / "file", ready=False)
    assert tree.wait() == 2
    assert f"--record-dir {tmp_path / 'file'}" in tree.log


def test_a_directory_is_given_once(tmp_path):
    command = [ACTORLM, "record", str(tmp_path), "--record-dir", "/elsewhere", "--model-impl", "null"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "DIR is given twice" in ran.stderr


def test_what_is_no_recording_is_refused(tmp_path):
    (tmp_path / "file").touch()
    ran = replay(tmp_path / "file")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "is no recording" in ran.stderr
