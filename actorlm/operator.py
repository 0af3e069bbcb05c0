"""What an operator's command asks of running trees, and orders, over their control sockets."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from actorlm.actors.operator_link import OperatorLink
from actorlm.config import environment
from actorlm.errors import ActorlmError, ConfigError, Unavailable
from actorlm.instance import Reach, is_running, reach_of, running
from actorlm.messages.catalog import protocol
from actorlm.messages.operator import OrderEnded, OrderProgressed, TreeDescribed
from actorlm.messages.supervisor import DescribeTree, LastAnswerRead, Order
from actorlm.options import merge
from actorlm.reach import resolved
from actorlm.runtime.curve import Security
from actorlm.runtime.errors import NotDelivered
from actorlm.runtime.events import LinkUp
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.topology import Role
from actorlm.wire import Message
from actorlm.wiring import supervisor_address

PATIENCE_S = 3.0
LOOK_S = 0.5
"""Time between two looks whether a tree is still there, while an order is awaited."""


class Door(NamedTuple):
    """How a tree's supervisor is reached. `name` is for people; `directory` is its run directory, if it is here."""

    name: str
    reach: Reach
    directory: Path | None = None

    @property
    def is_open(self) -> bool:
        """Whether the tree may still be there."""
        return self.directory is None or is_running(self.directory)


def doors() -> list[Door]:
    """To every running tree of this user on this host."""
    return [_of_directory(directory) for directory in running()]


def find_door(which: str | None) -> Door:
    """To the tree that is meant: by its run directory, HTTP port or deployment file; None is the only one that runs.

    Raises Unavailable if it does not run, ConfigError if several do and none is named.
    """
    if which is None:
        return _only(doors())
    if which.isdecimal():
        return _of_port(int(which))
    if which.endswith(".toml"):
        return _of_file(Path(which))
    directory = Path(which)
    found = next((door for door in doors() if door.directory == directory.absolute()), None)
    if found is None:
        raise Unavailable(f"{which} is no run directory of a running tree of this user{_listed(doors())}")
    return found


def _only(found: Sequence[Door]) -> Door:
    match found:
        case [door]:
            return door
        case []:
            raise Unavailable("no tree of this user is running; start one with `actorlm up`")
        case _:
            raise ConfigError(f"{len(found)} trees are running; name one by its port or run directory{_listed(found)}")


def _of_directory(directory: Path) -> Door:
    return Door(str(directory), reach_of(directory), directory)


def _of_port(port: int) -> Door:
    found = doors()
    for door, tree in describe(found):
        if isinstance(tree, TreeDescribed) and urlsplit(tree.url).port == port:
            return door
    raise Unavailable(f"no running tree of this user serves port {port}{_listed(found)}")


def _of_file(file: Path) -> Door:
    """By the address at which the supervisor of several hosts listens, whichever machine this is."""
    config = merge({}, environment(), file)
    address = supervisor_address(resolved(config, ""))
    if address is None:
        return _of_port(config.http.port)
    return Door(str(file), Reach(address, config.security.keys, config.security.insecure))


def _listed(found: Sequence[Door]) -> str:
    return f"; running: {', '.join(door.name for door in found)}" if found else ""


def describe(found: Sequence[Door]) -> list[tuple[Door, TreeDescribed | str]]:
    """The description of each tree, or why there is none."""

    async def all_of_them() -> list[TreeDescribed | str]:
        return await asyncio.gather(*map(describe_tree, found))

    return list(zip(found, asyncio.run(all_of_them()), strict=True))


async def describe_tree(door: Door) -> TreeDescribed | str:
    """The description of a tree, or why there is none."""
    try:
        async with _Session(door) as session, asyncio.timeout(PATIENCE_S):
            await session.begin(DescribeTree())
            answer = await session.next()
    except TimeoutError:
        return f"no answer within {PATIENCE_S:g} s"
    except ActorlmError as error:
        return error.message
    assert isinstance(answer, TreeDescribed), "it was asked for nothing else"
    return answer


def order(door: Door, what: Order, say: Callable[[str], None]) -> int:
    """Gives an order and waits until it is done; says how it goes. Returns the exit status. Raises Unavailable."""
    return asyncio.run(_order(door, what, say))


async def _order(door: Door, what: Order, say: Callable[[str], None]) -> int:
    async with _Session(door) as session:
        try:
            await asyncio.wait_for(session.begin(what), PATIENCE_S)
        except TimeoutError:
            raise Unavailable(f"{door.name}: no answer within {PATIENCE_S:g} s; nothing was ordered") from None
        while True:
            match await session.next():
                case OrderProgressed(text):
                    say(text)
                case OrderEnded(status, text):
                    say(text)
                    session.confirm()
                    return status


async def wait_until_gone(door: Door) -> None:
    """Until a tree that has said that it ends is gone with all it had on this host."""
    while door.directory is not None and door.is_open:  # noqa: ASYNC110 - nothing tells of a lock
        await asyncio.sleep(LOOK_S / 10)


class _Session:
    """A link to one supervisor, for one question or order."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __aenter__(self) -> Self:
        reach = self._door.reach
        security = Security.of(reach.keys, Role.OPERATOR, insecure=reach.insecure)
        security.keys_for(reach.address)  # raises what connecting would
        self._network = ZeroMQNetwork(protocol(), security=security)
        self._link = OperatorLink(self._network, reach.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._network.close()

    async def begin(self, message: Message) -> None:
        """Says it once there is a session. Raises Unavailable if that is refused."""
        await self._link.begin(message)

    def confirm(self) -> None:
        """Says that the last answer was read; a supervisor that has ended meanwhile need not know."""
        with contextlib.suppress(NotDelivered):
            self._link.send(LastAnswerRead())

    async def next(self) -> Message:
        """The next answer. Raises Unavailable if the tree is gone without one."""
        while True:
            try:
                message = await asyncio.wait_for(self._link.read(), LOOK_S)
            except TimeoutError:
                if self._door.is_open and self._link.is_up:
                    continue
                raise self._lost() from None
            if isinstance(message, LinkUp):  # another session: what was said in the one before may be lost
                raise self._lost()
            return message

    def _lost(self) -> Unavailable:
        return Unavailable(f"{self._door.name}: the supervisor is gone, or out of reach, without a last answer")
