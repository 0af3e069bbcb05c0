"""Several replicas: who gets which request, and that nobody waits for anybody."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from asking import connected, read
from exchange import PATHS, Exchange, body_of
from shapes import SHAPES
from streaming import Streaming, assert_undisturbed, endings, running
from test_life_deaths import held
from tree import PATIENCE, in_parallel, until

from actorlm.errors import BadRequest
from actorlm.scheduling.load import BURST_S

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
COMPLETIONS, CHAT = PATHS
BURST = 64


def by_replica(tree, name):
    """A metric of each replica."""
    found = {dict(labels)["engine"]: value for (metric, labels), value in tree.metrics().items() if metric == name}
    return {int(engine): value for engine, value in sorted(found.items())}


def started(tree):
    return by_replica(tree, "engine_requests_started_total")


def gained(tree, before):
    return {replica: count - before.get(replica, 0) for replica, count in started(tree).items()}


def burst(tree, **fields):
    """Equal requests at once, a connection each; how many each replica got, and the seconds until all were answered."""
    before, body = started(tree), body_of(tree, COMPLETIONS, **{"max_tokens": 30, "ignore_eos": True} | fields)
    began = time.monotonic()
    exchanges = [Exchange(tree, COMPLETIONS, body) for _ in range(BURST)]
    assert [exchange.response.status for exchange in exchanges] == [200] * BURST
    took = time.monotonic() - began
    for exchange in exchanges:
        assert exchange.json()["usage"]["completion_tokens"] == body["max_tokens"]
        exchange.close()
    counts = gained(tree, before)
    assert sum(counts.values()) == BURST
    assert all(counts[replica] > 0 for replica in range(4)), counts
    return counts, took


def assert_even(counts, took, *, slow):
    """Where steps are slow none has ended before all have come; else a burst on a busy machine may be none any more."""
    if slow or took < BURST_S:
        assert all(14 <= counts[replica] <= 18 for replica in range(4)), counts


@pytest.mark.parametrize("frontends", [1, 2])
@pytest.mark.parametrize("step_ms", [0, 60])
def test_a33_a_burst_is_spread_evenly(start, frontends, step_ms):
    """Right after the start, after idleness, and with prompts that all share."""
    tree = start(*NULL, "--null-step-ms", step_ms, "--dp", 4, "--frontends", frontends)
    assert_even(*burst(tree), slow=step_ms)
    time.sleep(2)
    assert_even(*burst(tree), slow=step_ms)
    assert_even(*burst(tree, prompt="The same for all of them. " * 4), slow=step_ms)


@pytest.mark.parametrize("frontends", [1, 2])
def test_a33_a_busy_replica_gets_the_least_of_a_burst(start, frontends):
    tree = start(*NULL, "--null-step-ms", 60, "--dp", 4, "--frontends", frontends)
    job = Streaming(tree, max_tokens=4000)
    [busy] = until(lambda: [number for number, count in by_replica(tree, "num_requests_running").items() if count], 10)
    counts, _ = burst(tree)
    assert job.ending == "running"
    assert counts[busy] == min(counts.values()), counts
    assert counts[busy] < 16, counts


@pytest.mark.long
def test_a33_a_burst_after_a_minute_of_idleness(start):
    tree = start(*NULL, "--null-step-ms", 60, "--dp", 4, "--frontends", 2)
    time.sleep(60)
    assert_even(*burst(tree), slow=True)


def test_a33_work_is_balanced_where_lengths_differ(start):
    tree = start(*NULL, "--null-step-ms", 20, "--dp", 2)
    busy = running(tree, 1, max_tokens=4000)
    before = started(tree)
    others = [Streaming(tree, prompt="x" * 400, max_tokens=100) for _ in range(4)]
    until(lambda: sum(gained(tree, before).values()) == 4, 10)
    counts = sorted(gained(tree, before).values())
    assert counts == [1, 3], counts
    assert endings(others) == ["done"] * 4
    assert busy[0].ending == "running"


def test_a34_a_conversation_returns_to_its_replica(start):
    """Its share of cached tokens rises from turn to turn."""
    tree = start(*NULL, "--dp", 2)
    messages, shares = [{"role": "system", "content": "Answer in a few words."}], []
    for turn in range(6):
        messages.append({"role": "user", "content": f"Question {turn}: {'why ' * 20}?"})
        body = {"model": tree.model, "messages": messages, "max_tokens": 20, "seed": turn, "logit_bias": {"65": 100}}
        answer = tree.post(CHAT, body).json()
        usage = answer["usage"]
        shares.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
        messages.append(answer["choices"][0]["message"])
    assert shares[0] == 0
    assert shares[1:] == sorted(shares[1:])
    assert shares[1] > 0.3
    assert shares[5] > 0.7
    assert sorted(started(tree).values()) == [6], "the other one has not been asked"
    held = by_replica(tree, "prefix_affinity_tokens_total")
    assert sum(held.values()) > 0


def test_a34_without_affinity_it_does_not(start):
    tree = start(*NULL, "--dp", 2, "--no-prefix-affinity")
    for _ in range(6):
        tree.complete("a prompt of several blocks, always the same", max_tokens=2)
    assert started(tree) == {0: 3, 1: 3}


def test_a_session_and_a_replica_of_ones_own(start):
    tree = start(*NULL, "--dp", 3, "--no-prefix-affinity")
    for headers in ({"X-Session-ID": "s"}, {"X-data-parallel-rank": "2"}):
        before = started(tree)
        for path in PATHS * 2:
            answer = tree.post(path, body_of(tree, path, max_tokens=2, n=3), headers=headers)
            assert answer.status_code == 200, answer.text
            tree.complete("others meanwhile", max_tokens=1)
        most = max(gained(tree, before).items(), key=lambda item: item[1])
        assert most[1] >= 12
        if "X-data-parallel-rank" in headers:
            assert most[0] == 2
    for value in ("3", "-1", "one"):
        refused = tree.post(COMPLETIONS, body_of(tree, COMPLETIONS), headers={"X-data-parallel-rank": value})
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert all(word in message for word in ("X-data-parallel-rank", repr(value), "0 to 2")), message


async def test_a_session_and_a_replica_over_zeromq(start):
    tree = start(*NULL, "--dp", 2, "--no-prefix-affinity")
    async with connected(tree) as client:
        for _ in range(4):
            await read(client.generate("Hi", max_tokens=2, replica=1))
            await read(client.chat([{"role": "user", "content": "Hi"}], max_tokens=2, session="s", n=2))
        counts = started(tree)
        assert sum(counts.values()) == 12
        assert counts.get(0, 0) in (0, 8)
        for wrong in (2, -1, True, 2**40, "1"):
            with pytest.raises(BadRequest) as caught:
                await read(client.generate("Hi", replica=wrong))
            assert caught.value.param == "replica"
        for wrong in ("a b", "\u00e4", "x" * 129, 5):
            with pytest.raises(BadRequest) as caught:
                await read(client.generate("Hi", session=wrong))
            assert caught.value.param == "session"


def test_a29_a_replica_dies_and_comes_back(start):
    """All streams go on, new requests go to the other one alone, and what asks for the dead one is told to wait."""
    tree = start(*NULL, "--null-step-ms", 20, "--dp", 2, "--max-restarts", 100)
    streams = running(tree, 8, max_tokens=150)
    asked = {"X-data-parallel-rank": "0", "X-Session-ID": "s"}
    assert tree.post(COMPLETIONS, body_of(tree, COMPLETIONS, max_tokens=1), headers=asked).status_code == 200
    successor = held(tree, "engine-0", tree.kill("engine-0"))
    until(lambda: tree.client.get("/health").json() == {"status": "degraded"}, 5)
    before = started(tree)
    refused = tree.post(COMPLETIONS, body_of(tree, COMPLETIONS, max_tokens=1), headers={"X-data-parallel-rank": "0"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    assert "replica 0" in refused.json()["error"]["message"]
    follows = tree.post(COMPLETIONS, body_of(tree, COMPLETIONS, max_tokens=1), headers={"X-Session-ID": "s"})
    assert follows.status_code == 200
    for number in range(4):
        tree.text(str(number), max_tokens=1)
    assert gained(tree, before)[0] == 0
    assert gained(tree, before)[1] >= 5
    os.kill(successor, signal.SIGCONT)
    assert_undisturbed(streams)
    until(lambda: tree.client.get("/ready").json().get("status") == "ready", 10)
    time.sleep(2 * BURST_S)  # what it had to do with the others together no longer counts
    back = gained(tree, before)[0]
    steps = by_replica(tree, "engine_steps_total")[0]
    for number in range(4):
        tree.text(str(number), max_tokens=2)
    assert gained(tree, before)[0] > back
    assert by_replica(tree, "engine_steps_total")[0] > steps


@pytest.mark.parametrize(
    ("shape", "longest"),
    [
        pytest.param(("--dp", 2), 2000, id="dp2"),
        pytest.param(SHAPES["dp2 tp2"], 200, id="dp2 tp2"),
        pytest.param(SHAPES["dp2 tp2"], 2000, id="dp2 tp2 long", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_a30_replicas_do_not_run_in_lock_step(start, shape, longest):
    """Of very uneven lengths all end. Then one request alone is computed by one replica; the other stands still."""
    tree = start(*NULL, "--null-step-ms", 2, *shape)  # so that the last request comes before the first ones end
    draw = random.Random(30)
    lengths = [draw.randint(1, longest) for _ in range(128)]
    bodies = in_parallel(
        [lambda i=i, n=n: tree.complete(f"{i}", max_tokens=n, ignore_eos=True) for i, n in enumerate(lengths)]
    )
    assert [body["usage"]["completion_tokens"] for body in bodies] == lengths
    counts = started(tree)
    assert all(count > 48 for count in counts.values()), counts
    tree.settled()
    for _ in range(2):
        before = by_replica(tree, "engine_steps_total")
        assert tree.complete("alone", max_tokens=50, ignore_eos=True)["usage"]["completion_tokens"] == 50
        moved = {replica: steps - before[replica] for replica, steps in by_replica(tree, "engine_steps_total").items()}
        assert min(moved.values()) == 0
        assert max(moved.values()) >= 50
        time.sleep(1)


def cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a40_an_idle_replica_beside_a_busy_one_costs_nothing(start):
    tree = start(*NULL, "--null-step-ms", 2, "--dp", 2)
    [stream] = running(tree, 1)
    idle = next(replica for replica, running in by_replica(tree, "num_requests_running").items() if not running)
    steps, ticks = by_replica(tree, "engine_steps_total"), cpu_ticks(tree.pid(f"engine-{idle}"))
    time.sleep(3)
    assert stream.ending == "running"
    after = by_replica(tree, "engine_steps_total")
    assert after[idle] == steps[idle]
    assert after[1 - idle] > steps[1 - idle]
    assert cpu_ticks(tree.pid(f"engine-{idle}")) - ticks <= 5, "hundredths of a second in three"


def test_a_first_request_after_idleness_starts_at_once_200_times(start):
    tree = start(*NULL, "--dp", 2)
    rng = random.Random(200)
    for number in range(200):
        time.sleep(rng.choice((0, 0.001, 0.01, 0.03)))
        stream = Streaming(tree, prompt=f"{number}", max_tokens=1)
        assert stream.join(3) == "done", f"request {number} after {PATIENCE} x 3 s"
    assert sum(started(tree).values()) == 200
    tree.settled()
