"""An operator's restart, with children that do as the test says."""

import asyncio
import time

import pytest

from actorlm.actors.rolling import RestartFailed, Rolling
from actorlm.errors import BadRequest
from actorlm.messages.actor import Retire
from actorlm.runtime.children import Child, ChildState, OnDeath
from actorlm.runtime.intensity import Intensity
from actorlm.runtime.supervision import EndChild, Limits, StartChild, Supervision
from actorlm.runtime.watch import Patience

LIMITS = Limits(Intensity(3, 60.0, 0.0), Patience(1.0, 10, 30), start_timeout_s=0.3)


class World:
    """A supervision whose children start and end at once, and say nothing wrong. `log` is what happened, in order.

    `mute` children never get ready; `busy` frontends never drain; `slow` children do not end when they are told to.
    """

    def __init__(self, frontends=1):
        children = [
            Child("frontend-0", "frontend", "frontend-0", OnDeath.RESTART_ALONE),
            Child("frontend-1", "frontend", "frontend-1", OnDeath.RESTART_ALONE),
            Child("balancer", "balancer", "balancer", OnDeath.RESTART_ALONE),
            Child("detokenizer-0", "detokenizer", "detokenizer-0", OnDeath.RESTART_ALONE),
            *(
                Child(f"{role}-{index}{rank}", role, f"engine-{index}", OnDeath.RESTART_GROUP)
                for index in (0, 1)
                for role, rank in (("engine", ""), ("worker", "-0"))
            ),
        ]
        self.supervision = Supervision([one for one in children if one.name != f"frontend-{frontends}"], LIMITS)
        self.rolling = Rolling(self.supervision, self, perform=self.perform, spare=self.spare)
        self.log, self.told, self.mute, self.busy, self.slow, self.fail = [], [], set(), set(), set(), set()
        self.perform(self.supervision.start(time.monotonic()))
        self.log.clear()

    def spare(self, frontend, lives):
        return Child("frontend-9", "frontend", "frontend-9", OnDeath.LET_GO, incarnation=lives)

    def say(self, peer, message):
        assert isinstance(message, Retire)
        self.log.append(f"retire {peer}")
        if peer not in self.busy:
            self.rolling.has_drained(peer)

    def perform(self, effects):
        for effect in effects:
            match effect:
                case StartChild():
                    self.log.append(f"start {effect.name}")
                    if effect.name in self.fail:
                        self.fail.discard(effect.name)
                        self.supervision.children[effect.name].last_death = "no such file"
                        self.perform(self.supervision.exited(effect.name, "no such file", time.monotonic()))
                    elif effect.name not in self.mute:
                        self.perform(self.supervision.ready(effect.name, effect.incarnation))
                case EndChild():
                    self.log.append(f"end {effect.name}")
                    if effect.name not in self.slow:
                        self.end(effect.name)

    def end(self, name):
        self.perform(self.supervision.exited(name, "killed", time.monotonic()))

    async def restart(self, what, drain_s=0.05):
        return await self.rolling.run(self.rolling.groups(what), drain_s, self.told.append)


REPLICA_0 = ["end engine-0", "end worker-0-0", "start engine-0", "start worker-0-0"]


@pytest.mark.parametrize("what", ["engine-0", "replica-0", "worker-0-0"])
async def test_any_name_of_a_replica_restarts_it_as_one(what):
    world = World()
    assert await world.restart(what) is True
    assert world.log == REPLICA_0
    assert world.told[0] == "restarting engine-0, worker-0-0"
    assert "ready again" in world.told[-1]


async def test_all_restart_one_group_after_another_engines_first():
    world = World(frontends=2)
    assert await world.restart("all") is True
    ends = [line.removeprefix("end ") for line in world.log if line.startswith("end")]
    replicas = ["engine-0", "worker-0-0", "engine-1", "worker-1-0"]
    assert ends == [*replicas, "detokenizer-0", "balancer", "frontend-0", "frontend-1"]
    assert world.log.index("start worker-0-0") < world.log.index("end engine-1")


async def test_a_frontend_finishes_first_while_another_takes_what_is_new():
    world = World(frontends=2)
    assert await world.restart("frontend-1") is True
    assert world.log == ["retire frontend-1", "end frontend-1", "start frontend-1"]


async def test_a_spare_stands_in_for_the_only_frontend():
    world = World()
    for lives in (1, 2):
        world.log.clear()
        assert await world.restart("frontend-0") is True
        assert world.log == [
            "start frontend-9",
            "retire frontend-0", "end frontend-0", "start frontend-0",
            "retire frontend-9", "end frontend-9",
        ]  # fmt: skip
        assert "frontend-9" not in world.supervision.children
        assert world.rolling._spares == lives, "its incarnations differ, and with them the numbers of its requests"


async def test_a_frontend_that_does_not_finish_in_time_is_cut_off_and_that_is_said():
    world = World(frontends=2)
    world.busy = {"frontend-0"}
    assert await world.restart("frontend-0") is False
    assert any("has not finished within 0.05 s" in line for line in world.told)
    assert world.log[-1] == "start frontend-0"


async def test_nobody_is_ended_while_another_is_missing():
    world = World()
    world.mute = {"balancer"}
    world.perform(world.supervision.exited("balancer", "x", time.monotonic()))
    world.perform(world.supervision.look(time.monotonic() + 1))
    with pytest.raises(RestartFailed, match="balancer not ready within 0.3 s; engine-0 was not restarted"):
        await world.restart("engine-0")
    assert "end engine-0" not in world.log


async def test_whoever_is_down_itself_can_be_restarted():
    world = World()
    world.mute = {"balancer"}
    world.perform(world.supervision.exited("balancer", "x", time.monotonic()))
    world.mute.clear()
    assert await world.restart("balancer") is True
    assert world.log == ["start balancer"]


async def test_what_does_not_come_back_ends_the_restart_with_its_cause():
    world = World()
    world.fail = {"detokenizer-0"}
    with pytest.raises(RestartFailed, match="detokenizer-0 did not come back: no such file"):
        await world.restart("all")
    assert "end balancer" not in world.log, "what was not restarted yet is left as it is"


async def test_a_restart_is_done_when_the_spare_is_gone():
    world = World()
    world.slow.add("frontend-9")
    restart = asyncio.ensure_future(world.restart("frontend-0"))
    await asyncio.sleep(0.1)
    assert world.log[-1] == "end frontend-9"
    assert not restart.done()
    world.end("frontend-9")
    assert await asyncio.wait_for(restart, 5)


async def test_a_spare_that_does_not_start_ends_the_restart_before_anything_ends():
    world = World()
    world.fail = {"frontend-9"}
    with pytest.raises(RestartFailed, match="frontend-9 did not get ready"):
        await world.restart("frontend-0")
    assert "end frontend-0" not in world.log


async def test_a_spare_stays_until_the_frontend_is_there_again():
    """However often that one fails: then the restart has failed, and nothing is left of it."""
    world = World()
    world.fail = {"frontend-0"}
    restart = asyncio.ensure_future(world.restart("frontend-0"))
    await asyncio.sleep(0.1)
    assert world.supervision.children["frontend-9"].state is ChildState.READY
    world.perform(world.supervision.look(time.monotonic() + 1))
    with pytest.raises(RestartFailed, match="no such file"):
        await restart
    assert world.log[-2:] == ["retire frontend-9", "end frontend-9"]


@pytest.mark.parametrize(
    ("what", "near"),
    [
        ("engin-0", "engine-0, engine-1"),
        ("replica-7", "replica-0"),
        ("al", "all"),
        ("supervisor", "near are"),
        ("", "balancer"),
    ],
)
async def test_a_wrong_name_is_refused_with_the_nearest_ones(what, near):
    with pytest.raises(BadRequest, match=near):
        await World().restart(what)


async def test_what_a_launcher_has_started_is_restarted_there():
    world = World()
    world.supervision.children["worker-0-0"].on_death = OnDeath.END_TREE
    for what in ("engine-0", "all"):
        with pytest.raises(BadRequest, match="worker-0-0 was started by a launcher"):
            await world.restart(what)
