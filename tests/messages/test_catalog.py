"""The catalog holds every inbox, and what is written about the protocol is what the structs say."""

import importlib.util
import pkgutil
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

import actorlm.messages
from actorlm.messages import engine
from actorlm.messages.catalog import INBOXES, PROTOCOL_VERSION, protocol
from actorlm.messages.engine import Abort, Generate
from actorlm.runtime.codec import Codec
from actorlm.runtime.fingerprint import fingerprint
from actorlm.runtime.handshake import ClientHandshake, Refused, ServerHandshake
from actorlm.runtime.identity import Identity
from actorlm.wire import Message

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_protocol.py"


def generator() -> types.ModuleType:
    specification = importlib.util.spec_from_file_location("generate_protocol", GENERATOR)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["protocol.md", "protocol.json"])
def test_the_generated_pages_are_fresh(name: str) -> None:
    text = {path.name: text for path, text in generator().pages().items()}[name]
    assert (GENERATOR.parent / name).read_text() == text, "run: python docs/generate_protocol.py"


def test_every_message_file_has_its_inbox_in_the_catalog() -> None:
    files = {module.name for module in pkgutil.iter_modules(actorlm.messages.__path__)} - {"catalog"}
    assert set(INBOXES) == files


@pytest.mark.parametrize("receiver", sorted(INBOXES))
def test_every_inbox_can_be_decoded_and_described(receiver: str) -> None:
    Codec(INBOXES[receiver])
    assert protocol().inboxes[receiver]


def test_every_message_is_closed_positional_and_documented() -> None:
    for struct in protocol().structs.values():
        assert struct.layout == f"array_like=True tag={struct.tag!r} closed=True"
        assert struct.doc, struct.tag


def test_every_message_that_is_defined_is_received_or_part_of_one() -> None:
    defined = {
        value.__name__
        for module in pkgutil.iter_modules(actorlm.messages.__path__)
        for value in vars(importlib.import_module(f"actorlm.messages.{module.name}")).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    }
    assert defined <= set(protocol().structs)


def test_swapping_two_fields_of_one_type_is_refused_by_the_name_of_the_struct() -> None:
    fields = list(Generate.__struct_fields__)
    first, second = fields.index("request"), fields.index("attempt")
    fields[first], fields[second] = fields[second], fields[first]
    theirs = fingerprint(INBOXES | {"engine": _copy(fields) | Abort, "balancer": Abort}, PROTOCOL_VERSION)
    ours = fingerprint(INBOXES | {"engine": Generate | Abort, "balancer": Abort}, PROTOCOL_VERSION)
    server = ServerHandshake(
        Identity("balancer", "balancer-0", 1, "a", 1), ours, admits={"engine"}, draw_session=lambda: 1
    )
    hello = ClientHandshake(Identity("engine", "engine-0", 1, "b", 2), theirs, "balancer-0").hello
    answer = server.greet(hello.identity.route, 1, hello)
    assert isinstance(answer, Refused)
    assert answer.difference == "Generate"
    assert "balancer-0" in str(answer)
    assert "engine-0" in str(answer)


def _copy(fields: list[str]) -> Any:
    """Generate with its fields in this order."""
    described = {field.name: field for field in msgspec.structs.fields(Generate)}
    listed: list[Any] = []
    for name in fields:
        field = described[name]
        default = () if field.default is msgspec.NODEFAULT else (field.default,)
        listed.append((name, field.type, *default))
    return msgspec.defstruct("Generate", listed, bases=(Message,), tag="Generate", module=engine.__name__)


def test_an_unchanged_copy_is_no_difference() -> None:
    copy = _copy(list(Generate.__struct_fields__))
    changed = INBOXES | {"balancer": Abort}
    ours = fingerprint(changed | {"engine": Generate | Abort}, PROTOCOL_VERSION)
    theirs = fingerprint(changed | {"engine": copy | Abort}, PROTOCOL_VERSION)
    assert ours.digest == theirs.digest
