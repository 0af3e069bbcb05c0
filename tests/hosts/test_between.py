"""Two hosts of which none leads cannot reach each other, while the lead reaches both."""

import threading

import pytest
from tree import in_parallel, until

SLOW = 'model_impl = "null"\nnull_step_ms = 20'
STREAM = {"max_tokens": 400, "temperature": 0}


@pytest.mark.timeout(300)
def test_streams_go_on_when_a_replica_cannot_reach_their_detokenizer(up, network):
    """The lead misses nobody; the requests go to the replica whose tokens arrive, and later to both again."""
    hosts = {"a": "http = false\ndevices = []", "b": "http = true", "c": ""}
    up.write(hosts, "[parallel]\ndata = 2\n", model=SLOW)
    a, b, c = up("a"), up("b"), up("c")
    b.wait_ready()
    assert c.pid("engine-1")
    expected = [b.streamed_text(f"number {number}", **STREAM) for number in range(2)]
    jobs = [lambda number=number: b.streamed_text(f"number {number % 2}", **STREAM) for number in range(8)]
    results = []
    streams = threading.Thread(target=lambda: results.extend(in_parallel(jobs)))
    streams.start()
    until(lambda: b.total("num_requests_running") == 8, 20)
    network.cut("b", "c")
    streams.join(200)
    assert results == expected * 4
    assert "lost" not in a.log
    steps = ("engine_steps_total", (("engine", "1"),))
    before = b.metrics()[steps]
    assert [b.streamed_text(f"number {number}", **STREAM) for number in range(2)] == expected
    assert b.metrics()[steps] == before, "somebody was sent to the replica that is cut off"
    network.heal("b", "c")
    until(lambda: b.text("more", max_tokens=1) and b.metrics()[steps] > before, 30)
