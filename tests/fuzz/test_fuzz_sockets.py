"""E04: whatever is said to a socket between actors, by strangers and by peers that joined, harms nobody."""

from typing import NamedTuple, get_args

import msgspec
import pytest
import zmq
from fuzz_peers import Member, Stranger, raw
from fuzz_run import GROWTH_MIB, LONG_GROWTH_MIB, PART, ROUND, Tally, Unharmed, generate
from fuzz_values import OURS, flows, members, strangers
from hostile import bound_sockets
from hypothesis import strategies as st
from tree import Tree

from actorlm.messages.catalog import INBOXES
from actorlm.messages.engine import Abort
from actorlm.messages.supervisor import DescribeTree, Order
from actorlm.wire import int64

pytestmark = [pytest.mark.serving]

KINDS = tuple({kind: None for inbox in INBOXES.values() for kind in get_args(inbox) or (inbox,)})
FROM_OPERATORS = {DescribeTree, *get_args(Order)}
ABORT_ALL = msgspec.msgpack.encode(Abort(int64(range(OURS, OURS + 1000))))


class Joined(NamedTuple):
    """Somebody who may join a server: under which role and name, and whose inbox is there."""

    socket: str
    role: str
    name: str
    inbox: str
    one_way: str | None = None

    @property
    def kinds(self):
        """What the server takes from somebody."""
        return self._harmless(get_args(INBOXES[self.inbox]))

    @property
    def others(self):
        """What anybody takes."""
        return self._harmless(KINDS)

    def _harmless(self, kinds):
        """An operator's orders are carried out, and its question ends its session: these are left to others."""
        return tuple(kind for kind in kinds if self.role != "operator" or kind not in FROM_OPERATORS)


JOINED = [
    Joined("supervisor", "operator", "operator-7", "supervisor"),
    Joined("supervisor", "frontend", "frontend-77", "supervisor"),
    Joined("supervisor", "engine", "engine-77", "supervisor"),
    Joined("supervisor", "host", "host-b-7", "supervisor"),
    Joined("balancer", "frontend", "frontend-77", "balancer"),
    Joined("balancer", "engine", "engine-77", "balancer"),
    Joined("detokenizer-0", "frontend", "frontend-77", "detokenizer"),
    Joined("detokenizer-0", "engine", "engine-77", "detokenizer"),
    Joined("detokenizer-0", "engine", "engine-78", "detokenizer", "tokens"),
    Joined("engine-0-workers", "worker", "worker-0-77", "executor"),
    Joined("engine-0-workers", "worker", "worker-0-78", "executor", "results"),
    Joined("frontend-0", "client", "client-77", "frontend"),
]


@pytest.fixture(scope="module")
def tree():
    with Tree("--model-impl", "null", "--executor", "broadcast", "--heartbeat-timeout-s", "60") as one:
        yield one.wait_ready()


@pytest.fixture
def context():
    one = zmq.Context()
    yield one
    one.destroy(linger=0)


class Sender:
    """Everybody who sends, by where and as whom."""

    def __init__(self, tree, context):
        self.paths = bound_sockets(tree)
        self.tally = Tally()
        self._context = context
        self._peers = {}

    def stranger(self, socket, what, frames):
        self.tally.sent[socket, what] += 1
        self._peer(socket, lambda: Stranger(self._context, self.paths[socket])).send(frames)

    def member(self, joined, what, body):
        one_way = f" ({joined.one_way})" if joined.one_way else ""
        self.tally.sent[f"{joined.socket}{one_way} as {joined.role}", what] += 1
        self._member(joined).send(body)

    def connection(self, socket, what, data):
        self.tally.sent[socket, what] += 1
        raw(self.paths[socket], data)

    def settle(self):
        """Ends what was begun, so that each part of the inputs meets a tree at rest."""
        balancer = self._peers.get(JOINED[4])
        if balancer is not None:
            balancer.send(ABORT_ALL)
        for peer in self._peers.values():
            peer.settle()

    def close(self):
        for peer in self._peers.values():
            peer.close()

    def _member(self, joined):
        def join():
            return Member(self._context, self.paths[joined.socket], joined.role, joined.name, joined.one_way)

        return self._peer(joined, join)

    def _peer(self, key, make):
        if key not in self._peers:
            self._peers[key] = make()
        return self._peers[key]


def inputs(sockets):
    """Some inputs: how and by whom each is sent, what it is, and the data."""
    names = st.sampled_from(sorted(sockets))
    return st.one_of(
        st.tuples(names, strangers(KINDS)).map(lambda drawn: addressed("stranger", *drawn)),
        st.sampled_from(JOINED)
        .flatmap(lambda joined: st.tuples(st.just(joined), members(joined.kinds, joined.others)))
        .map(lambda drawn: addressed("member", *drawn)),
        st.tuples(names, flows()).map(lambda drawn: addressed("connection", *drawn)),
    )


def addressed(how, where, several):
    return [(how, where, *one) for one in several]


@pytest.mark.parametrize(
    ("count", "growth_mib"),
    [
        (3_000, GROWTH_MIB),
        pytest.param(75_000, LONG_GROWTH_MIB, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
def test_e04_whatever_is_said_to_the_sockets(tree, context, count, growth_mib, tmp_path):
    sender = Sender(tree, context)
    assert {joined.socket for joined in JOINED} <= sender.paths.keys()
    unharmed = Unharmed(tree, growth_mib)
    sent = 0

    def send(one):
        nonlocal sent
        sender.tally.recent.append(one)
        how, where, what, data = one
        getattr(sender, how)(where, what, data)
        sent += 1
        if sent % PART == 0:
            sender.settle()
        if sent % ROUND == 0:
            unharmed.check()

    try:
        generate(inputs(sender.paths), count, send)
    finally:
        sender.close()
        sender.tally.report(unharmed, tmp_path)
    unharmed.check()
    tree.settled()
    assert sum(sender.tally.sent.values()) == count
