"""E04: messages of the right form with values that make no sense, from peers that joined and do not belong here."""

import math

import pytest
from hostile import bound_sockets
from impostor import every_message, say, variations
from tree import Tree, until

from actorlm.logprobs import Logprobs
from actorlm.messages.balancer import LoadReported, ReplicaAnnounced, RequestsEnded
from actorlm.messages.detokenizer import Close, Open, TokensSampled
from actorlm.messages.engine import Abort, Generate
from actorlm.messages.executor import Fault, StepDone, StepFailed, WorkerReady
from actorlm.messages.supervisor import (
    DescribeTree,
    DrainTree,
    MetricsReported,
    PeerStuck,
    ReadMetrics,
    RestartActors,
    StopTree,
)
from actorlm.sampling import SamplingParams
from actorlm.wire import int32, int64

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

ADMITTED = [
    ("supervisor", "supervisor", "operator", "operator-7"),
    ("supervisor", "supervisor", "frontend", "frontend-77"),
    ("supervisor", "supervisor", "engine", "engine-77"),
    ("balancer", "balancer", "frontend", "frontend-77"),
    ("balancer", "balancer", "engine", "engine-77"),
    ("detokenizer-0", "detokenizer-0", "frontend", "frontend-77"),
    ("detokenizer-0", "detokenizer-0", "engine", "engine-77"),
    ("engine-0-workers", "engine-0", "worker", "worker-0-77"),
    ("frontend-0", "frontend-0", "client", "client-77"),
]
"""Socket, server, role, name."""

OURS = 77 << 48
"""Requests of frontend-77 begin here."""


@pytest.fixture(scope="module")
def tree():
    with Tree("--model-impl", "null", "--executor", "broadcast") as one:
        yield one.wait_ready()


@pytest.fixture
def sockets(tree):
    """Where the tree's sockets are; after the test every process is still the same and works."""
    before = tree.processes().keys()
    yield bound_sockets(tree)
    tree.sentinel()
    assert tree.processes().keys() == before
    assert "Traceback" not in tree.log
    assert tree.client.get("/metrics").status_code == 200
    tree.settled()


def dropped(tree, actor):
    return tree.metrics()["bad_frames_total", (("actor", actor),)]


@pytest.mark.parametrize(("socket", "server", "role", "name"), ADMITTED)
def test_e04_every_message_with_every_value(tree, sockets, socket, server, role, name):
    messages = every_message()
    assert len(messages) > 300
    before = dropped(tree, server)
    say(sockets[socket], server, role, name, messages)
    until(lambda: dropped(tree, server) > before + 100, 5)


@pytest.mark.parametrize(("socket", "server", "role", "name"), [ADMITTED[6], ADMITTED[7]])
def test_e04_every_message_one_way(tree, sockets, socket, server, role, name):
    before = dropped(tree, server)
    say(sockets[socket], server, role, name, every_message(), one_way="tokens" if role == "engine" else "results")
    until(lambda: dropped(tree, server) > before + 100, 5)


def test_e04_generate_with_every_value(tree, sockets):
    """Requests that the balancer takes for those of a frontend of the tree, so that the engine sees them."""
    sampling = list(variations(SamplingParams))
    fields = {
        "prompt_ids": [b"", int32([-1]), int32([259]), int32([2**31 - 1]), int32([1]) * 40_000, b"x"],
        "generated_ids": [int32([-5]), int32([300]), int32([1] * 100)],
        "detokenizer": [1, 9999, 2**31 - 1],
        "attempt": [2**31 - 1],
        "priority": [-1, 2**63 - 1],
        "adapter": ["x"],
        "cache_salt": ["x" * 100_000],
        "weight": [0.0, -1.0],
        "session": ["", "x" * 128, "x" * 100_000],
        "replica": [0, 1, 9999, -1],
    }
    plain = {"attempt": 0, "frontend": "frontend-77", "detokenizer": 0, "prompt_ids": int32([1]), "generated_ids": b"",
             "sampling": SamplingParams(max_tokens=2)}  # fmt: skip
    odd = [{name: value} for name, values in fields.items() for value in values] + [
        {"sampling": one} for one in sampling
    ]
    messages = [Generate(OURS + number, **plain | change) for number, change in enumerate(odd)]
    messages += [Generate(OURS, **plain), Generate(OURS, **plain)]  # twice the same
    messages += [Abort(int64([message.request for message in messages])), Abort(int64([-1, 0, 2**63 - 1]))]
    say(sockets["balancer"], "balancer", "frontend", "frontend-77", messages)


def test_e04_announcements_of_others(tree, sockets):
    """A replica is announced by nobody but itself: it would be given requests."""
    messages = [
        ReplicaAnnounced(9999, 10**9, 256),
        ReplicaAnnounced(0, 10**9, 256),
        LoadReported(0, 0, 0, 0, 0, 0),
        RequestsEnded(0, int64(range(100))),
    ]
    before = dropped(tree, "balancer")
    say(sockets["balancer"], "balancer", "engine", "engine-77", messages)
    until(lambda: dropped(tree, "balancer") == before + 4, 5)
    for _ in range(4):
        tree.sentinel()


def test_e04_worker_facts_of_no_rank(tree, sockets):
    """A failure that a stranger reports is not this replica's; a step that it reports done is not."""
    messages = [
        *(WorkerReady(rank, 1, "h", 1) for rank in (9999, -1)),
        *(StepFailed(Fault(rank, "h", 1, "idle", "E", "m", "t")) for rank in (9999, 0)),
        *(StepDone(step, int32([1, 2, 3]), 0) for step in range(50)),
    ]
    before = dropped(tree, "engine-0")
    say(sockets["engine-0-workers"], "engine-0", "worker", "worker-0-77", messages)
    until(lambda: dropped(tree, "engine-0") == before + len(messages), 5)


def test_e04_texts_of_others(tree, sockets):
    """Opens, tokens and closes that contradict each other, or name requests of others."""
    opened = [
        Open(1, 0, int32([1]), b"", 0, ("x",)),
        Open(1, 0, int32([9999]), int32([65]), 1, ()),
        Open(2, 0, int32([1]), int32([65]), 50, ()),  # more characters than those ids make
        Open(3, 0, int32([1]), int32([65, 66]), 0, ("A",)),  # a stop string that was found already
        Open(2**63 - 1, 2**31 - 1, b"", b"", 0, ()),
    ]
    tokens = [
        TokensSampled(
            0,
            int64([1, 1, 2]),
            int32([0, 0, 0]),
            int32([1, 2, 0]),
            int32([65, 66, 2**31 - 1]),
            bytes(3),
            int32([0, 0, 0]),
        ),
        TokensSampled(0, int64([1]), int32([0]), int32([1]), int32([67]), bytes([3]), int32([-1])),
        TokensSampled(0, int64([1]), int32([0]), int32([1]), int32([67]), bytes([1]), int32([0])),
        TokensSampled(
            0, int64([1]), int32([0]), int32([1]), int32([67]), bytes(1), int32([0]),
            Logprobs(*map(int32, ([1], [2**31 - 1], [1], [2**31 - 1], [1], [1])), b"1234"),
        ),
    ]  # fmt: skip
    say(
        sockets["detokenizer-0"],
        "detokenizer-0",
        "frontend",
        "frontend-77",
        [*opened, *tokens, Close(int64([1, 2, 3, -1]))],
    )


def test_e04_operators_only_ask(tree, sockets):
    """Whoever may ask for the table of actors can neither stop one nor change what is counted."""
    samples = MetricsReported(1, ())
    messages = [PeerStuck("engine-0"), PeerStuck("frontend-0"), samples, ReadMetrics(1)]
    before = dropped(tree, "supervisor")
    say(sockets["supervisor"], "supervisor", "operator", "operator-7", messages)
    until(lambda: dropped(tree, "supervisor") == before + len(messages), 5)


@pytest.mark.parametrize("role", ["frontend", "engine", "worker"])
def test_e04_orders_are_the_operators_to_give(tree, sockets, role):
    orders = [StopTree(), DrainTree(0.0), RestartActors("all"), DescribeTree()]
    before = dropped(tree, "supervisor")
    say(sockets["supervisor"], "supervisor", role, f"{role}-77", orders)
    until(lambda: dropped(tree, "supervisor") == before + len(orders), 5)


@pytest.mark.parametrize("what", ["", "nobody", "x" * 5000, "a\nb\x1b[31m\0"])
def test_e04_orders_that_name_nothing(tree, sockets, what):
    say(sockets["supervisor"], "supervisor", "operator", "operator-8", [RestartActors(what, -1.0)])
    assert not math.isnan(dropped(tree, "supervisor"))


def test_e04_operators_come_and_go(tree, sockets):
    """Each `actorlm ps` is a peer; none of them is remembered."""
    for number in range(5):
        say(sockets["supervisor"], "supervisor", "operator", f"operator-{number}", [DescribeTree()])
    assert not math.isnan(dropped(tree, "supervisor"))
