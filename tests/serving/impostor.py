"""A peer that is no actor of the tree, but speaks as one: any message, with any values that its types allow."""

import asyncio
from typing import Union, get_args

import msgspec
from msgspec import inspect

from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.supervisor import DescribeTree, DrainTree, LastAnswerRead, RestartActors, StopTree
from actorlm.runtime.columns import column_of
from actorlm.runtime.events import LinkUp
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.zeromq import ZeroMQNetwork

INTEGERS = (-1, 0, 1, 9999, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**64 - 1)
TEXTS = ("", "nobody", "engine-0", "x" * 5000, "a\nb\x1b[31m\0")
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e308)
COLUMN_ITEMS = {"uint8": 1, "int32": 4, "int64": 8}


PLAIN = {
    inspect.IntType: [1, *INTEGERS],
    inspect.FloatType: FLOATS,
    inspect.BoolType: [False, True],
    inspect.StrType: ["x", *TEXTS],
    inspect.BytesType: [b"", b"\xc1", b"\x91" * 2000, b"\xdd\xff\xff\xff\xff"],
    inspect.NoneType: [None],
}


def values_of(declared):
    """Some values of a type, the harmless one first. Integers ignore the bounds of their type."""
    if isinstance(declared, inspect.Metadata) and (size := COLUMN_ITEMS.get(column_of(declared))):
        return columns(size)
    match declared:
        case inspect.Metadata(type=inner):
            found = values_of(inner)
        case inspect.EnumType(cls=cls):
            found = list(cls)
        case inspect.UnionType(types=types):
            found = [value for inner in types for value in values_of(inner)]
        case inspect.VarTupleType(item_type=inner):
            items = values_of(inner)
            found = [(), *((value,) for value in items), (items[0],) * 2000]
        case inspect.TupleType(item_types=inner):
            found = list(zip(*(cycle_of(values_of(one), 10) for one in inner), strict=True))
        case inspect.DictType(key_type=key, value_type=value):
            pairs = zip(cycle_of(values_of(key), 10), cycle_of(values_of(value), 10), strict=True)
            found = [{}, *({one: other} for one, other in pairs)]
        case inspect.StructType(cls=cls):
            found = list(variations(cls))
        case _:
            found = PLAIN[type(declared)]
    return found


def cycle_of(values, count):
    return [values[index % len(values)] for index in range(count)]


def columns(size):
    """Raw columns: none, one and many items, negative ones, and a part of an item."""
    return [
        bytes(size),
        b"",
        bytes(2 * size),
        b"\xff" * size,
        b"\xff" * (3 * size - 1) + b"\x7f",
        bytes(1000 * size),
        b"\1" * (size + 1),
    ]


def variations(kind):
    """Messages of one kind: a harmless one, and then one for each other value of each field."""
    fields = inspect.type_info(kind).fields
    choices = [values_of(field.type) for field in fields]
    first = [one[0] for one in choices]
    yield kind(*first)
    for index, values in enumerate(choices):
        for value in values[1:]:
            yield kind(*first[:index], value, *first[index + 1 :])


KINDS = tuple({kind: None for inbox in INBOXES.values() for kind in get_args(inbox) or (inbox,)})

OPERATORS = (DescribeTree, LastAnswerRead, RestartActors, DrainTree, StopTree)

ANYTHING = Union[KINDS]  # noqa: UP007 - computed


def every_message():
    """All variations of all messages of the protocol, but for what an operator may well say and what it then does."""
    return [message for kind in KINDS if kind not in OPERATORS for message in variations(kind)]


def encodable(message):
    try:
        msgspec.msgpack.encode(message)
    except (OverflowError, ValueError):
        return False
    return True


def say(path, server, role, name, messages, one_way=None):
    """Joins a server under a role and a name, and says all of this; over a one-way socket of it if one is named."""
    asyncio.run(_say(path, server, role, name, list(filter(encodable, messages)), one_way))


async def _say(path, server, role, name, messages, one_way):
    network = ZeroMQNetwork(protocol(), high_water=100_000)
    mailbox = Mailbox("impostor", 100_000, Overflow.PAUSE)
    link = network.connect(
        f"ipc://{path}", peer=server, identity=this_process(role, name), mailbox=mailbox, inbox=ANYTHING
    )
    try:
        async with asyncio.timeout(10):
            while not any(isinstance(message, LinkUp) for _, message in await mailbox.drain()):
                pass
        to = link.pusher(one_way) if one_way else link
        for message in messages:
            to.send(message)
            if not one_way:
                await asyncio.sleep(0)
        await asyncio.sleep(0.2)
    finally:
        await network.close()
