"""Which tree an operator means, and what a command hears of it."""

import asyncio

import pytest

from actorlm import operator
from actorlm.errors import ConfigError, Unavailable
from actorlm.instance import Reach
from actorlm.messages.actor import TreeState
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.operator import OrderEnded, OrderProgressed, TreeDescribed
from actorlm.messages.supervisor import DescribeTree, DrainTree, LastAnswerRead, StopTree
from actorlm.operator import Door, describe_tree, find_door
from actorlm.runtime.events import PeerJoined
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.zeromq import ZeroMQNetwork


@pytest.fixture
def trees(monkeypatch, tmp_path):
    """Gives the run directories of that many trees, which serve ports 8000, 8001, ..."""

    def run(count):
        found = [tmp_path / str(index) for index in range(count)]
        monkeypatch.setattr(operator, "running", lambda: found)
        monkeypatch.setattr(
            operator,
            "describe",
            lambda doors: [
                (door, TreeDescribed(TreeState.READY, "null", f"http://[::1]:{8000 + index}", ()))
                for index, door in enumerate(doors)
            ],
        )
        return found

    return run


def test_the_only_tree_need_not_be_named(trees):
    [directory] = trees(1)
    assert find_door(None) == Door(str(directory), Reach(f"ipc://{directory}/supervisor"), directory)


def test_none_and_several_are_errors_that_say_what_to_do(trees):
    trees(0)
    with pytest.raises(Unavailable, match="no tree of this user is running; start one with `actorlm up`"):
        find_door(None)
    first, second = trees(2)
    with pytest.raises(ConfigError, match=f"2 trees are running; name one by its port .*; running: {first}, {second}"):
        find_door(None)


def test_a_tree_is_named_by_its_port_or_its_directory(trees, monkeypatch):
    first, second = trees(2)
    assert find_door("8001").directory == second
    assert find_door(str(first)).directory == first
    monkeypatch.chdir(second.parent)
    assert find_door("./1").directory == second


@pytest.mark.parametrize(("which", "why"), [("9999", "serves port 9999"), ("/no/such", "is no run directory")])
def test_a_tree_that_does_not_run(trees, which, why):
    trees(1)
    with pytest.raises(Unavailable, match=f"{why}.*; running: "):
        find_door(which)


HOSTS = """
[hosts.a]
address = "127.0.0.1"
[hosts.b]
address = "127.0.0.2"
[sockets]
ports = "7300-7399"
"""


def test_a_tree_of_several_hosts_is_named_by_its_file(tmp_path, monkeypatch):
    """Which says where its supervisor is; whoever asks may have keys of his own."""
    file = tmp_path / "deployment.toml"
    file.write_text(HOSTS)
    assert find_door(str(file)) == Door(str(file), Reach("tcp://127.0.0.1:7300"))
    monkeypatch.setenv("ACTORLM_KEYS", "/my/keys")
    assert find_door(str(file)).reach == Reach("tcp://127.0.0.1:7300", "/my/keys")
    file.write_text(HOSTS + 'supervisor = "tcp://127.0.0.1:7999"')
    assert find_door(str(file)).reach.address == "tcp://127.0.0.1:7999"


def test_a_tree_of_one_machine_that_is_named_by_its_file_is_found_by_its_port(trees, tmp_path):
    _, second = trees(2)
    file = tmp_path / "deployment.toml"
    file.write_text("[http]\nport = 8001\n")
    assert find_door(str(file)).directory == second


async def test_a_tree_that_must_not_be_asked_is_no_obstacle(supervisor):
    """One that leads beyond this machine without keys: why is said, and others are shown."""
    said = await describe_tree(Door("far", Reach("tcp://192.0.2.1:7000")))
    assert "leads beyond this machine and has no keys" in said


class Supervisor:
    """Answers each question and order with what `answers` gives, and says nothing else."""

    def __init__(self, directory, answers):
        self.answers, self.asked = answers, []
        self.was_asked, self.was_read = asyncio.Event(), asyncio.Event()
        self.network = ZeroMQNetwork(protocol())
        self.mailbox = Mailbox("supervisor", 100, Overflow.PAUSE)
        self.server = self.network.serve(
            f"ipc://{directory}/supervisor",
            identity=this_process("supervisor", "supervisor"),
            mailbox=self.mailbox,
            inbox=INBOXES["supervisor"],
            admits=("operator",),
        )
        self.running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self):
        while True:
            for sender, message in await self.mailbox.drain():
                if isinstance(message, LastAnswerRead):
                    self.was_read.set()
                elif not isinstance(message, PeerJoined):
                    self.asked.append(message)
                    self.was_asked.set()
                    for answer in self.answers:
                        self.server.send(sender, answer)

    async def close(self):
        self.running.cancel()
        await self.network.close()


@pytest.fixture
async def supervisor(tmp_path, monkeypatch):
    """Begins a supervisor with these answers, and gives it and its door."""
    begun = []

    def begin(*answers):
        begun.append(Supervisor(tmp_path, answers))
        return begun[-1], Door("here", Reach(f"ipc://{tmp_path}/supervisor"))

    monkeypatch.setattr(operator, "PATIENCE_S", 0.5)
    monkeypatch.setattr(operator, "LOOK_S", 0.05)
    yield begin
    for one in begun:
        await one.close()


async def test_a_description(supervisor):
    described = TreeDescribed(TreeState.READY, "null", "http://127.0.0.1:1", ())
    one, door = supervisor(described)
    assert await describe_tree(door) == described
    assert one.asked == [DescribeTree()]


async def test_a_tree_that_does_not_answer(supervisor, tmp_path):
    _, door = supervisor()
    assert await describe_tree(door) == "no answer within 0.5 s"
    assert await describe_tree(Door("gone", Reach(f"ipc://{tmp_path}/nowhere"))) == "no answer within 0.5 s"
    with pytest.raises(Unavailable, match="gone: no answer within 0.5 s; nothing was ordered"):
        await operator._order(Door("gone", Reach(f"ipc://{tmp_path}/nowhere")), StopTree(), print)


@pytest.mark.parametrize("status", [0, 1, 2])
async def test_an_order_says_how_it_goes_and_ends_with_the_status_it_was_told(supervisor, status):
    one, door = supervisor(OrderProgressed("draining"), OrderEnded(status, "the end"))
    said = []
    assert await operator._order(door, DrainTree(3.0), said.append) == status
    assert said == ["draining", "the end"]
    await asyncio.wait_for(one.was_read.wait(), 5)
    assert one.asked == [DrainTree(3.0)]


async def test_a_supervisor_that_goes_away_before_the_last_answer(supervisor):
    one, door = supervisor(OrderProgressed("draining"))
    order = asyncio.ensure_future(operator._order(door, DrainTree(), lambda _: None))
    await asyncio.wait_for(one.was_asked.wait(), 5)
    await asyncio.sleep(0.1)
    assert not order.done()
    await one.close()
    with pytest.raises(Unavailable, match="without a last answer"):
        await asyncio.wait_for(order, 5)


async def test_a_session_that_is_lost_in_an_order_is_no_success(supervisor):
    """What was answered before the new one may be lost."""
    one, door = supervisor(OrderProgressed("draining"))
    order = asyncio.ensure_future(operator._order(door, DrainTree(), lambda _: None))
    await asyncio.wait_for(one.was_asked.wait(), 5)
    await one.close()
    supervisor()
    with pytest.raises(Unavailable, match="without a last answer"):
        await asyncio.wait_for(order, 5)
