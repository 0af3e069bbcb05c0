"""Two hosts of which none leads cannot reach each other, while the lead reaches both."""

import pytest
from disturbed import SLOW, streams, texts
from tree import until


@pytest.mark.timeout(300)
def test_streams_go_on_when_a_replica_cannot_reach_their_detokenizer(up, network):
    """The lead misses nobody; the requests go to the replica whose tokens arrive, and later to both again."""
    hosts = {"a": "http = false\ndevices = []", "b": "http = true", "c": ""}
    up.write(hosts, "[parallel]\ndata = 2\n", model=SLOW)
    a, b, c = up("a"), up("b"), up("c")
    b.wait_ready()
    assert c.pid("engine-1")
    with streams(b) as expected:
        network.cut("b", "c")
    assert "lost" not in a.log
    steps = ("engine_steps_total", (("engine", "1"),))
    before = b.metrics()[steps]
    assert texts(b) == expected
    assert b.metrics()[steps] == before, "somebody was sent to the replica that is cut off"
    network.heal("b", "c")
    until(lambda: b.text("more", max_tokens=1) and b.metrics()[steps] > before, 30)
