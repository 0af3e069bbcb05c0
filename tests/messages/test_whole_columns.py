"""Every column of every message is whole before an actor sees it, wherever in the message it is."""

from typing import Any, get_args

import msgspec
import pytest
from impostor import encodable, variations
from msgspec import inspect

from actorlm.messages.catalog import INBOXES
from actorlm.messages.detokenizer import TokensSampled
from actorlm.runtime.codec import Codec
from actorlm.runtime.columns import ITEM_BYTES, column_of
from actorlm.runtime.errors import BadBody

KINDS = tuple({kind: None for inbox in INBOXES.values() for kind in get_args(inbox) or (inbox,)})


def has_partial_column(value: Any, declared: inspect.Type) -> bool:
    """Looks at a value, and not at its type alone as the codec does."""
    match declared:
        case inspect.StructType(cls=cls, fields=fields):
            return isinstance(value, cls) and any(
                has_partial_column(getattr(value, field.name), field.type) for field in fields
            )
        case inspect.UnionType(types=types):
            return any(has_partial_column(value, one) for one in types)
        case inspect.VarTupleType(item_type=item):
            return isinstance(value, tuple) and any(has_partial_column(one, item) for one in value)
        case inspect.Metadata(type=inner):
            size = ITEM_BYTES.get(column_of(declared), 1)
            partial = isinstance(value, bytes) and len(value) % size > 0
            return partial or has_partial_column(value, inner)
        case _:
            return False


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_part_of_an_item_is_refused_wherever_it_is(kind: type) -> None:
    codec: Codec[Any] = Codec(kind)
    for message in filter(encodable, variations(kind)):
        body = msgspec.msgpack.encode(message)
        if has_partial_column(message, inspect.type_info(kind)):
            with pytest.raises(BadBody):
                codec.decode(body)


def test_such_parts_are_among_the_variations() -> None:
    found = [
        message
        for message in variations(TokensSampled)
        if has_partial_column(message, inspect.type_info(TokensSampled))
    ]
    assert any(message.logprobs is not None and len(message.logprobs.prompts) % 4 for message in found)
