"""The other hosts, seen from the lead: who is admitted, and what is lost with whom."""

import asyncio
import signal

import pytest

from actorlm.actors.agents import Agents
from actorlm.messages.host import HostAdmitted, HostRefused, HostReleased, SignalProcess, StartProcess, StillLeading
from actorlm.messages.supervisor import HostArrived, HostLeaving, ProcessEnded, ProcessStarted
from actorlm.runtime.errors import PeerUnknown
from actorlm.runtime.hosts import Hosts


class FakeServer:
    """Keeps what is sent; peers that are `gone` raise."""

    def __init__(self):
        self.sent = []
        self.gone = set()

    def send(self, peer, message):
        if peer in self.gone:
            raise PeerUnknown(peer)
        self.sent.append((peer, message))

    def forget(self, peer):
        self.gone.add(peer)

    def take(self):
        taken, self.sent = self.sent, []
        return taken


class Watcher:
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def host_came(self, host):
        self.told.append(("came", host))

    def host_leaves(self, host):
        self.told.append(("leaves", host))

    def host_lost(self, host, why, *, ordered):
        self.told.append(("lost", host, why, ordered))


class World:
    def __init__(self):
        self.server, self.watcher, self.lines = FakeServer(), Watcher(), []
        self.agents = Agents(
            self.server,
            Hosts(["b", "c"], silence_ticks=3),
            kv_cache_tokens=160,
            clock=lambda: 7,
            difference=lambda arrival: arrival.facts.get("difference", ""),
            run_there={"b": "this", "c": "that"},
            say=self.lines.append,
        )
        self.agents.watch(self.watcher)

    def arrive(self, peer="host-b-1", host="b", kv=160, **facts):
        self.agents.joined(peer)
        self.agents.receive(peer, HostArrived(host, f"pid of {peer}", facts, kv))
        return self.server.take()

    def spawn(self, name="engine-1", incarnation=1):
        """A process of host b, and the list that has an item once it has ended."""
        process, ends = self.agents.spawn("b", name, incarnation), []
        process.watch(lambda *_: None, lambda: ends.append(process.reap(lambda _: None)))
        return process, ends


@pytest.fixture
def world():
    return World()


async def _turn():
    await asyncio.sleep(0)


def test_a_host_that_fits_is_admitted_with_the_plan_and_the_clock(world):
    assert world.arrive() == [("host-b-1", HostAdmitted(160, 7))]
    assert world.watcher.told == [("came", "b")]
    assert world.agents.missing == ["c"]


@pytest.mark.parametrize(
    ("arrival", "reason"),
    [
        ({"difference": "x is 1 there and 2 on the lead"}, "host b does not fit: x is 1 there and 2 on the lead"),
        ({"kv": 144}, "room for a KV cache of 144 tokens in each replica, the lead has planned 160"),
        ({"host": "a"}, "host a is none of those that the lead waits for"),
    ],
)
def test_a28_one_that_does_not_fit_is_refused_for_good_and_said_once(world, arrival, reason):
    ((_, refused),) = world.arrive(**arrival)
    assert isinstance(refused, HostRefused)
    assert refused.final
    assert reason in refused.reason
    assert world.watcher.told == []
    assert len(world.lines) == 1


def test_a25_a_second_agent_may_ask_again_until_the_first_is_lost(world):
    world.arrive()
    ((_, refused),) = world.arrive("host-b-2")
    assert not refused.final
    assert "pid of host-b-1" in refused.reason
    assert "pid of host-b-2" in refused.reason
    world.server.gone.add("host-b-1")
    world.agents.tick()
    assert world.arrive("host-b-2") == [("host-b-2", HostAdmitted(160, 7))]


def test_one_that_is_gone_before_it_is_admitted_has_not_come(world):
    world.server.gone.add("host-b-1")
    world.arrive()
    assert [told[0] for told in world.watcher.told] == ["lost"]
    assert world.agents.missing == ["b", "c"]


async def test_a_process_is_started_signalled_and_ends_by_messages(world):
    world.arrive()
    process, ends = world.spawn()
    world.agents.receive("host-b-1", ProcessStarted("engine-1", 1, 99))
    process.signal(signal.SIGKILL)
    assert process.pid == 99
    assert world.server.take() == [
        ("host-b-1", StartProcess("engine-1", 1)),
        ("host-b-1", SignalProcess("engine-1", 1, signal.SIGKILL)),
    ]
    world.agents.receive("host-b-1", ProcessEnded("engine-1", 2, "another life"))
    await _turn()
    assert ends == []
    world.agents.receive("host-b-1", ProcessEnded("engine-1", 1, "killed by SIGKILL"))
    await _turn()
    assert ends == ["killed by SIGKILL"]


async def test_a_silent_host_is_lost_with_its_processes_and_heard_no_more(world):
    world.arrive()
    _, ends = world.spawn()
    world.agents.tick()
    world.agents.heard("host-b-1")
    world.agents.tick()
    world.agents.tick()
    assert ("host-b-1", StillLeading()) in world.server.take()
    assert ("lost", "b", "it is unreachable", False) not in world.watcher.told
    world.agents.tick()
    await _turn()
    assert world.watcher.told[-1] == ("lost", "b", "it is unreachable", False)
    assert ends == ["host b is unreachable"]
    assert "host-b-1" not in world.agents
    assert "host-b-1" in world.server.gone


async def test_a_session_that_begins_again_is_a_lost_host(world):
    world.arrive()
    _, ends = world.spawn()
    world.agents.joined("host-b-1")
    await _turn()
    assert world.watcher.told[-1][:2] == ("lost", "b")
    assert ends == ["host b is unreachable"]


async def test_what_is_started_on_a_host_that_has_just_been_lost_has_ended(world):
    world.arrive()
    world.server.gone.add("host-b-1")
    both = [world.spawn(), world.spawn("engine-2")]
    await _turn()
    assert [ends for _, ends in both] == [["host b is unreachable"]] * 2


def test_a_host_that_leaves_is_released_when_it_is_not_needed_any_more(world):
    world.arrive()
    world.agents.receive("host-b-1", HostLeaving())
    assert world.watcher.told[-1] == ("leaves", "b")
    world.agents.release("b")
    assert world.server.take() == [("host-b-1", HostReleased())]
    assert world.watcher.told[-1] == ("lost", "b", "it was told to leave", True)
    world.agents.release("b")
    assert world.server.take() == []
