"""The balancer among peers that are made up: what it sends to whom, and what it counts."""

from types import SimpleNamespace

import msgspec
import pytest

from actorlm.actors.balancer import Balancer
from actorlm.errors import ProtocolError
from actorlm.messages.actor import Census, CollectMetrics, PeerLost
from actorlm.messages.balancer import (
    Acquitted,
    Inventory,
    LoadReported,
    ReplicaAnnounced,
    RequestRefused,
    RequestsEnded,
    RequestsLost,
    TextsCutOff,
)  # fmt: skip
from actorlm.messages.engine import Abort, Generate
from actorlm.messages.frontend import FleetChanged, RequestsInterrupted
from actorlm.messages.supervisor import PeerStuck
from actorlm.metrics import Metrics
from actorlm.runtime.errors import PeerFull, PeerUnknown
from actorlm.runtime.events import PeerJoined
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.sampling import SamplingParams
from actorlm.scheduling.balance import BOUNDLESS
from actorlm.wire import int32, int64, read_int32, read_int64

FRONTEND = "frontend-0"


class FakeServer:
    """Keeps what is sent. `broken` peers raise."""

    def __init__(self):
        self.sent = []
        self.broken = {}

    def send(self, peer, message):
        if peer in self.broken:
            raise self.broken[peer]
        self.sent.append((peer, message))

    def bury(self, peer, incarnation):
        self.broken[peer] = PeerUnknown(peer)

    def take(self, kind):
        taken = [(peer, message) for peer, message in self.sent if isinstance(message, kind)]
        self.sent.clear()
        return taken


class FakeMembership:
    def __init__(self):
        self.metrics = Metrics()
        self.said = []

    async def beat(self, actor):
        pass

    def say(self, message):
        self.said.append(message)

    def report(self, token, actor):
        pass


@pytest.fixture
async def world():
    """A balancer with two replicas and a frontend."""
    server, membership = FakeServer(), FakeMembership()
    mailbox = Mailbox("balancer", 10, Overflow.PAUSE)
    balancer = Balancer(
        "balancer", mailbox, server, membership, max_imbalance=1000, prefix_affinity=True, room=BOUNDLESS
    )
    balancer.receive(FRONTEND, PeerJoined(FRONTEND, "frontend", 1))
    for replica in range(2):
        balancer.receive(f"engine-{replica}", PeerJoined(f"engine-{replica}", "engine", 1))
        balancer.receive(f"engine-{replica}", ReplicaAnnounced(replica, 4096, 8))
    server.take(FleetChanged)
    yield SimpleNamespace(balancer=balancer, server=server, membership=membership, tell=balancer.receive)
    balancer._balance.check()


def generate(request, tokens=40, **fields):
    sampling = SamplingParams(**{"max_tokens": 8} | fields.pop("sampling", {}))
    return Generate(request, 0, FRONTEND, 0, int32(range(tokens)), b"", sampling, **fields)


def went_to(world):
    return [peer for peer, _ in world.server.take(Generate)]


def samples(world):
    world.tell("supervisor", CollectMetrics(1))
    return {(name, *labels): value for name, labels, value in world.membership.metrics.samples()}


async def test_requests_are_spread_and_counted(world):
    for request in range(4):
        world.tell(FRONTEND, generate(request, tokens=10))
    assert went_to(world) == ["engine-0", "engine-1"] * 2
    found = samples(world)
    assert [found["engine_requests_started", replica] for replica in "01"] == [2, 2]
    assert [found["engine_expected_work", replica] for replica in "01"] == [84, 84]
    world.tell("engine-0", RequestsEnded(0, int64([0])))
    world.tell("engine-1", LoadReported(1, 2, 0, 5, 1, 32))
    found = samples(world)
    assert [found["engine_expected_work", replica] for replica in "01"] == [42, 9]


async def test_a_prompt_follows_its_beginning(world):
    world.tell(FRONTEND, generate(1, tokens=400))
    world.tell("engine-0", RequestsEnded(0, int64([1])))
    world.tell(FRONTEND, generate(2, tokens=440))
    assert went_to(world) == ["engine-0", "engine-0"]
    assert samples(world)["prefix_affinity_tokens", "0"] == 400
    world.tell(FRONTEND, generate(3, tokens=440, cache_salt="other"))
    world.tell(FRONTEND, generate(4, tokens=440, sampling={"prompt_logprobs": 1}))
    assert went_to(world)[0] == "engine-1"
    assert samples(world)["prefix_affinity_tokens", "0"] == 400


async def test_what_cannot_be_sent_is_refused_and_not_counted(world):
    for replica, error in enumerate((PeerFull("full"), PeerUnknown("gone"))):
        world.server.broken[f"engine-{replica}"] = error
        world.tell(FRONTEND, generate(1, replica=replica))
        [(peer, refusal)] = world.server.take(RequestRefused)
        assert (peer, refusal.request, refusal.status) == (FRONTEND, 1, 503)
        assert not world.balancer._balance.requests
        assert samples(world)["engine_expected_work", "0"] == 0
    assert world.membership.said == [PeerStuck("engine-0")]


async def test_what_does_not_reach_one_replica_goes_to_another(world):
    """Until the first one joins again, when it is told apart from its successor."""
    world.tell(FRONTEND, generate(1))
    world.tell(FRONTEND, Abort(int64([1])))
    assert went_to(world) == ["engine-0"]
    world.server.broken["engine-0"] = PeerUnknown("gone")
    for request in range(2, 6):
        world.tell(FRONTEND, generate(request))
    assert went_to(world) == ["engine-1"] * 4
    world.tell(FRONTEND, msgspec.structs.replace(generate(1), attempt=1))
    assert [refusal.status for _, refusal in world.server.take(RequestRefused)] == [503], "its last attempt is there"
    del world.server.broken["engine-0"]
    world.tell("engine-0", PeerJoined("engine-0", "engine", 1))
    world.tell("engine-0", ReplicaAnnounced(0, 4096, 8))
    world.tell(FRONTEND, generate(7))
    assert went_to(world) == ["engine-0"]


async def test_a29_a_replica_that_is_gone_gets_nothing_and_is_missed(world):
    for request in range(4):
        world.tell(FRONTEND, generate(request, tokens=10, session="s" if request == 0 else ""))
    world.server.take(Generate)
    world.tell("supervisor", PeerLost("engine-0", "engine", 1))
    (_, lost), *_ = [(peer, message) for peer, message in world.server.sent if isinstance(message, RequestsInterrupted)]
    assert list(read_int64(lost.requests)) == [0, 2]
    assert world.server.take(FleetChanged)[-1][1].replicas == (1,)
    world.tell(FRONTEND, generate(5, replica=0))
    [(_, refusal)] = world.server.take(RequestRefused)
    assert (refusal.status, "replica 0" in refusal.message) == (503, True)
    for request in range(6, 9):
        world.tell(FRONTEND, generate(request, session="s"))
    assert went_to(world) == ["engine-1"] * 3
    assert samples(world)["engine_expected_work", "0"] == 0
    world.server.broken.clear()
    world.tell("engine-0", PeerJoined("engine-0", "engine", 1))
    world.tell("engine-0", ReplicaAnnounced(0, 4096, 8))
    world.tell(FRONTEND, generate(9, tokens=10))
    assert went_to(world) == ["engine-0"]


async def test_an_abort_reaches_the_owner_and_counts_at_once(world):
    for request in range(4):
        world.tell(FRONTEND, generate(request, tokens=10))
    world.server.take(Generate)
    world.tell(FRONTEND, Abort(int64([0, 3, 77])))
    aborts = {peer: list(read_int64(message.requests)) for peer, message in world.server.take(Abort)}
    assert aborts == {"engine-0": [0], "engine-1": [3]}
    assert samples(world)["engine_expected_work", "0"] == 42


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("frontend-1", generate(1)),
        ("engine-1", RequestsEnded(0, int64([1]))),
        ("engine-1", LoadReported(0, 0, 0, 0, 0, 0)),
        ("engine-1", ReplicaAnnounced(0, 4096, 8)),
    ],
)
async def test_nobody_speaks_for_others(world, sender, message):
    with pytest.raises(ProtocolError):
        world.tell(sender, message)


def suspect(request):
    return msgspec.structs.replace(generate(request), attempt=2, suspect=True)


async def test_suspects_are_sent_one_at_a_time(world):
    """The next one when the last has got a token, has ended, or died with its replica."""
    for request in range(4):
        world.tell(FRONTEND, suspect(request))
    world.tell(FRONTEND, generate(10))
    assert [message.request for _, message in world.server.take(Generate)] == [0, 10]
    world.tell(FRONTEND, Acquitted(0))
    assert [message.request for _, message in world.server.take(Generate)] == [1]
    world.tell(FRONTEND, Abort(int64([1, 2])))
    [(where, message)] = world.server.take(Generate)
    assert message.request == 3
    world.tell(FRONTEND, suspect(4))
    world.tell("supervisor", PeerLost(where, "engine", 1))
    assert [message.request for _, message in world.server.take(Generate)] == [4]


async def test_suspects_that_find_no_replica_are_all_told(world):
    for request in range(5):
        world.tell(FRONTEND, suspect(request))
    for replica in range(2):
        world.tell("supervisor", PeerLost(f"engine-{replica}", "engine", 1))
    assert [refusal.request for _, refusal in world.server.take(RequestRefused)] == [2, 3, 4]


async def test_what_nobody_may_say_changes_nothing(world):
    for sender, message in (
        ("engine-0", ReplicaAnnounced(0, 4096, 8)),  # again
        (FRONTEND, Inventory(int64([1 << 48]), int32([0]))),  # another frontend's
        (FRONTEND, Inventory(int64([1]), int32([0, 0]))),
        (FRONTEND, RequestRefused(1, 0, 503, None, "no")),
        ("engine-x", RequestRefused(1, 0, 503, None, "no")),
        (FRONTEND, RequestsLost(0, int64([1]), int32([0]), "x")),
        ("engine-1", TextsCutOff(0, (0,))),
        (FRONTEND, Acquitted(1 << 48)),
    ):
        world.server.sent.clear()
        with pytest.raises(ProtocolError):
            world.tell(sender, message)
        assert world.server.sent == []


async def test_a_new_balancer_hears_of_everything_and_tells_what_is_lost():
    """It is told who lives, an engine tells what it has, a frontend what it wants."""
    server = FakeServer()
    balancer = Balancer(
        "balancer", Mailbox("balancer", 10, Overflow.PAUSE), server, FakeMembership(),
        max_imbalance=1000, prefix_affinity=True, room=BOUNDLESS,
    )  # fmt: skip
    tell = balancer.receive
    tell("supervisor", Census(("engine-0", "engine-1")))
    tell(FRONTEND, PeerJoined(FRONTEND, "frontend", 1))
    tell(FRONTEND, Inventory(int64([1, 2, 3]), int32([0, 4, 0])))
    tell("engine-0", PeerJoined("engine-0", "engine", 1))
    tell("engine-0", ReplicaAnnounced(0, 4096, 8, int64([1, 2, 9]), int32([0, 3, 0])))
    assert [read_int64(message.requests).tolist() for _, message in server.take(Abort)] == [[2, 9]]
    assert not server.take(RequestsInterrupted), "the other engine may have the rest"
    tell("supervisor", PeerLost("engine-1", "engine", 1))
    [(peer, lost)] = server.take(RequestsInterrupted)
    assert (peer, read_int64(lost.requests).tolist(), read_int32(lost.attempts).tolist()) == (FRONTEND, [2, 3], [4, 0])
    assert not lost.blames
    assert balancer._balance.attempt(1) == 0
    balancer._balance.check()
