"""One life of a host's agent."""

import asyncio

import pytest

from actorlm.actors.host_agent import HostAgent, Outcome
from actorlm.errors import ConfigError
from actorlm.messages.host import HostAdmitted, HostRefused, HostReleased, SignalProcess, StartProcess, StillLeading
from actorlm.messages.supervisor import Heartbeat, HostArrived, HostLeaving, ProcessEnded, ProcessStarted
from actorlm.runtime.events import LinkUp
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.pulse import Pulse

ARRIVAL = HostArrived("b", "pid 1 on x", {}, 160)


class FakeLink:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


class FakeProcess:
    """Ends when it is signalled."""

    pid = 99

    def __init__(self):
        self.signals = []

    def watch(self, add_reader, on_exit):
        self.on_exit = on_exit

    def reap(self, remove_reader):
        return "it ended"

    def signal(self, number):
        self.signals.append(number)
        asyncio.get_running_loop().call_soon(self.on_exit)


class World:
    def __init__(self, **changes):
        self.link, self.processes, self.lines = FakeLink(), {}, []
        options = {"pulse": Pulse(0.1), "silence_beats": 6, "drain_timeout_s": 0.0, "patience_s": 5.0}
        self.agent = HostAgent(
            "host-b-1",
            Mailbox("host-b-1", 100, Overflow.PAUSE),
            link=self.link,
            arrival=ARRIVAL,
            spawner=lambda tokens, clock: self._spawn,
            say=self.lines.append,
            **(options | changes),
        )
        self.serving = asyncio.get_running_loop().create_task(self.agent.serve())

    def _spawn(self, name, incarnation):
        self.processes[name] = FakeProcess()
        return self.processes[name]

    async def hear(self, *messages):
        for message in messages:
            self.agent.mailbox.put("supervisor", message)
        await asyncio.sleep(0.01)

    async def admitted(self):
        await self.hear(LinkUp("supervisor"), HostAdmitted(160, 7), StartProcess("engine-1", 1))

    def said(self, kind):
        return [message for message in self.link.sent if isinstance(message, kind)]


async def test_it_says_who_it_is_and_starts_and_signals_processes():
    world = World()
    await world.admitted()
    assert world.link.sent[0] == ARRIVAL
    assert world.said(ProcessStarted) == [ProcessStarted("engine-1", 1, 99)]
    await world.hear(SignalProcess("engine-1", 2, 15))
    assert world.processes["engine-1"].signals == [], "which is meant for another life"
    await world.hear(SignalProcess("engine-1", 1, 15))
    await world.hear()
    assert world.said(ProcessEnded) == [ProcessEnded("engine-1", 1, "it ended")]
    world.agent.interrupt()
    await world.serving


async def test_without_the_lead_it_ends_its_processes_and_its_life():
    world = World()
    await world.admitted()
    for _ in range(10):
        await asyncio.sleep(0.03)
        await world.hear(StillLeading())
    assert not world.serving.done()
    assert world.said(Heartbeat)
    await asyncio.wait_for(world.serving, 5)
    assert world.agent.outcome is Outcome.CUT_OFF
    assert world.processes["engine-1"].signals == [9]


async def test_a_session_that_begins_again_ends_its_life():
    world = World()
    await world.admitted()
    await world.hear(LinkUp("supervisor"))
    await asyncio.wait_for(world.serving, 5)
    assert world.agent.outcome is Outcome.CUT_OFF
    assert world.processes["engine-1"].signals == [9]


async def test_a26_a_lead_that_never_comes_is_missing():
    world = World(patience_s=0.05)
    await asyncio.wait_for(world.serving, 5)
    assert world.agent.outcome is Outcome.MISSING


async def test_a28_a_refusal_ends_it_with_the_reason():
    world = World()
    await world.hear(LinkUp("supervisor"), HostRefused("because", final=True))
    with pytest.raises(ConfigError, match="because"):
        await asyncio.wait_for(world.serving, 5)


async def test_a_host_that_is_told_to_leave_asks_and_a_second_time_does_not_wait():
    world = World()
    await world.admitted()
    world.agent.leave()
    await world.hear(StillLeading())
    assert world.said(HostLeaving) == [HostLeaving()]
    assert not world.serving.done()
    world.agent.leave()
    await asyncio.wait_for(world.serving, 5)
    assert world.agent.outcome is Outcome.FORCED


async def test_frontends_of_a_host_that_is_released_end_by_themselves_and_nobody_else():
    """They have been told to stop, and send what they have left; others have nothing to say."""
    world = World()
    await world.admitted()
    await world.hear(StartProcess("frontend-1", 1), HostReleased())
    engine, frontend = world.processes["engine-1"], world.processes["frontend-1"]
    assert (len(engine.signals), frontend.signals) == (1, [])
    assert not world.serving.done()
    frontend.on_exit()
    await world.serving
    assert (world.agent.outcome, frontend.signals) == (Outcome.RELEASED, [])


async def test_frontends_that_do_not_end_are_killed(monkeypatch):
    monkeypatch.setattr("actorlm.actors.host_agent.STOP_GRACE_S", 0.01)
    world = World()
    await world.admitted()
    await world.hear(StartProcess("frontend-1", 1), HostReleased())
    await world.serving
    assert len(world.processes["frontend-1"].signals) == 1


async def test_nobody_waits_for_frontends_of_a_host_that_is_interrupted():
    world = World()
    await world.admitted()
    await world.hear(StartProcess("frontend-1", 1))
    world.agent.interrupt()
    await world.serving
    assert len(world.processes["frontend-1"].signals) == 1
