"""What is sent: messages and bodies of the right shape with any values, what becomes of them in a mutation, and noise.

Shapes come from `msgspec.inspect`, so a new message or field is sent without a line here. Hypothesis chooses values; a
mutation is drawn as a seed, because many small draws are slow and nothing here is shrunk.
"""

import json
import random
import zlib
from functools import cache

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from actorlm.api.schema_chat import ChatCompletionRequest
from actorlm.api.schema_completions import CompletionRequest
from actorlm.api.schema_tokenize import DetokenizeRequest, TokenizeRequest
from actorlm.messages.engine import Generate
from actorlm.messages.frontend import Chat, Complete
from actorlm.runtime.columns import ITEM_BYTES, column_of
from actorlm.runtime.header import Header, Kind
from actorlm.sampling import SamplingParams
from actorlm.wire import int32

OURS = 77 << 48
"""Requests of frontend-77 begin here."""
NAMES = ["", "engine-0", "worker-0-0", "frontend-0", "frontend-77", "supervisor", "null", "a\n\x1b[31m\0", "x" * 3000]
EDGES = [-1, 0, 1, 2, 255, 9999, -(2**31), 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1]
BOMBS = [
    *(kind + b"\xff\xff\xff\xff" for kind in (b"\xdd", b"\xdf", b"\xc6", b"\xdb")),
    *(b"\xc9\xff\xff\xff\xff\x01", b"\xc1", b"\x91" * 3000, b"\x81" * 3000, b"[" * 3000, b'{"a":' * 1000),
]
"""Lengths that are not there, and nesting."""


INTEGERS = (
    st.sampled_from(EDGES) | st.integers(0, 40) | st.integers(OURS, OURS + 999) | st.integers(-(2**63), 2**64 - 1)
)
TEXTS = st.sampled_from(NAMES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
BYTES = st.binary(max_size=60) | st.sampled_from(BOMBS)
NOISE = st.binary(max_size=400) | st.integers(0, 2**32).map(lambda seed: random.Random(seed).randbytes(seed % 20_000))
PLAIN = {
    inspect.IntType: INTEGERS,
    inspect.FloatType: st.floats() | st.floats(0, 2),
    inspect.BoolType: st.booleans(),
    inspect.StrType: TEXTS,
    inspect.BytesType: BYTES,
    inspect.NoneType: st.none(),
    inspect.AnyType: st.none() | TEXTS | st.integers(-9, 9),
    inspect.RawType: st.none(),
}


def columns(item_bytes):
    """Raw columns: small numbers, any bytes, and now and then a part of an item."""
    small = st.lists(st.integers(0, 300), max_size=8).map(
        lambda values: b"".join(value.to_bytes(max(2, item_bytes), "little")[:item_bytes] for value in values)
    )
    return small | st.binary(max_size=12 * item_bytes)


def values(declared):
    """Values of a declared type, as what msgspec encodes to their wire form. Bounds of the type are mostly ignored."""
    if isinstance(declared, inspect.Metadata) and (size := ITEM_BYTES.get(column_of(declared))):
        return columns(size)
    match declared:
        case inspect.Metadata(type=inner):
            found = values(inner)
        case inspect.EnumType(cls=cls):
            found = st.sampled_from([one.value for one in cls])
        case inspect.LiteralType(values=literals):
            found = st.sampled_from(list(literals)) | TEXTS
        case inspect.UnionType(types=types):
            found = st.one_of(*map(values, types))
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
            found = st.lists(values(inner), max_size=4)
        case inspect.TupleType(item_types=inner):
            found = st.tuples(*map(values, inner)).map(list)
        case inspect.DictType(key_type=key, value_type=value):
            found = st.dictionaries(
                values(key) if not isinstance(key, inspect.AnyType) else TEXTS, values(value), max_size=4
            )
        case inspect.StructType(cls=cls):
            found = struct_values(cls)
        case _:
            found = PLAIN[type(declared)]
    return found


@cache
def struct_values(cls):
    """A struct's wire form: a list with its tag, or a dict, from which fields that may be left out often are."""
    declared = inspect.type_info(cls)
    if declared.array_like:
        tag = [st.just(declared.tag)] if declared.tag is not None else []
        return st.tuples(*tag, *(values(field.type) for field in declared.fields)).map(list)
    required = {field.encode_name: values(field.type) for field in declared.fields if field.required}
    optional = {field.encode_name: values(field.type) for field in declared.fields if not field.required}
    if declared.tag is not None:
        required[declared.tag_field] = st.just(declared.tag)
    return st.fixed_dictionaries(required, optional={name: optional[name] for name in optional})


# Messages between actors.


def encoded(value):
    """msgpack, or noise in its place for integers that it cannot carry."""
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, ValueError):
        return msgspec.msgpack.encode(repr(value)[:1000])


@cache
def messages(kinds):
    """The bodies of messages of these kinds. What carries the body of a request carries one, mostly."""
    return st.sampled_from(kinds).flatmap(_message)


@cache
def _message(kind):
    if kind in (Complete, Chat):
        body = json_bodies(CompletionRequest if kind is Complete else ChatCompletionRequest)
        rest = [values(field.type) for field in inspect.type_info(kind).fields[2:]]
        return st.tuples(st.just(kind.__name__), INTEGERS, body | BYTES, *rest).map(list).map(encoded)
    if kind is Generate:
        return (struct_values(kind) | plausible_requests()).map(encoded)
    return struct_values(kind).map(encoded)


def plausible_requests():
    """Requests of frontend-77 that an engine would compute, but for what one or two of their fields say."""
    fields = {field.name: values(field.type) for field in inspect.type_info(Generate).fields}
    sampling = st.builds(
        SamplingParams,
        max_tokens=st.integers(1, 5),
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 9),
        logprobs=st.none() | st.integers(0, 3),
    )
    plain = {"request": st.integers(OURS, OURS + 999), "attempt": st.integers(0, 1), "frontend": st.just("frontend-77"),
             "detokenizer": st.just(0), "prompt_ids": st.lists(st.integers(0, 255), min_size=1, max_size=9).map(int32),
             "generated_ids": st.just(b""), "sampling": sampling}  # fmt: skip
    odd = st.sets(st.sampled_from(sorted(fields)), max_size=2)
    return odd.flatmap(lambda names: _generate({**plain, **{name: fields[name] for name in names}}))


def _generate(chosen):
    declared = inspect.type_info(Generate)
    whole = [chosen.get(field.name, st.just(field.default)) for field in declared.fields]
    return st.tuples(st.just(declared.tag), *whole).map(list)


SEEDS = st.integers(0, 2**63)


def mutated(data, seed):
    """The bytes after one to four random changes of them."""
    rng = random.Random(seed)
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[place % len(data)] = rng.randrange(256)
            case 2:
                del data[place:]
            case 3:
                data[place:place] = rng.randbytes(rng.randint(1, 20))
            case 4:
                del data[place : place + rng.randint(1, 8)]
            case 5:
                data[place:place] = data[: rng.randint(0, 40)]
            case _:
                data[place:place] = rng.choice(BOMBS)
    return bytes(data)


HEADERS = st.builds(
    lambda kind, session, sequence, sent: Header(kind, session, sequence, sent).encode(),
    st.sampled_from(list(Kind)),
    st.sampled_from([0, 1, 77, 2**32 - 1]),
    st.sampled_from([0, 1, 2, 2**64 - 1]),
    st.just(0),
)


MUTANTS = 9
"""Mutations of each message: what hypothesis draws takes a hundred times as long."""


def mutants(what, data):
    """The data as it is, and mutations of it, by seeds that the data themselves give."""
    yield what, data
    seed = zlib.crc32(data)
    for number in range(MUTANTS):
        yield f"mutated {what}", mutated(data, seed + number)


def strangers(kinds):
    """[(what it is, frames)] from whoever has no session."""
    bodies = messages(kinds)
    return st.one_of(
        st.lists(NOISE, min_size=1, max_size=4).map(lambda frames: [("noise", frames)]),
        st.tuples(HEADERS, NOISE).map(lambda frames: [("noise behind a header", list(frames))]),
        st.tuples(HEADERS, bodies, NOISE).map(lambda frames: [("too many frames", list(frames))]),
        st.tuples(HEADERS, bodies).map(lambda frames: list(_from_nobody(*frames))),
    )


def _from_nobody(header, body):
    for what, data in mutants("message without a session", body):
        yield what, [header, data]
    yield "mutated header", [mutated(header, zlib.crc32(body)), body]


def members(kinds, others):
    """[(what it is, body or None)] from a peer with a session: what it may say, what others may, and neither."""
    return st.one_of(
        messages(kinds).map(lambda body: list(mutants("message of its role", body))),
        messages(kinds).map(lambda body: list(mutants("message of its role", body))),
        messages(others).map(lambda body: list(mutants("message of any role", body))),
        NOISE.map(lambda body: [("noise in a session", body), ("no body", None)]),
    )


# Bytes of ZMTP.

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
FLOWS = [GREETING, GREETING + READY, GREETING + READY + b"\x01\x01x\x00\x01y", b"GET / HTTP/1.1\r\n\r\n"]


def flows():
    """[(what it is, bytes)], each for a connection of its own."""
    return st.one_of(
        st.builds(lambda flow, seed: [("mutated ZMTP", mutated(flow, seed))], st.sampled_from(FLOWS), SEEDS),
        NOISE.map(lambda noise: [("noise after ZMTP", GREETING + READY + noise), ("noise instead of ZMTP", noise)]),
    )


# Bodies of HTTP.

ROUTES = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
SHORT = {"max_tokens": st.integers(0, 4), "n": st.integers(1, 3), "model": st.just("null")}
"""Mostly: one request of the largest sizes takes the time of a thousand small ones."""


@cache
def json_bodies(cls):
    """JSON of a request struct: the fields that it must have, and a few of the others."""
    fields = {field.encode_name: values(field.type) for field in inspect.type_info(cls).fields}
    required = {field.encode_name for field in inspect.type_info(cls).fields if field.required} | (
        {"max_tokens"} & fields.keys()
    )
    base = st.fixed_dictionaries({name: SHORT.get(name, fields[name]) for name in required})
    extra = st.dictionaries(
        st.sampled_from(sorted(fields.keys() - {"max_tokens", "max_completion_tokens"})), st.none(), max_size=3
    ).flatmap(lambda chosen: st.fixed_dictionaries({name: SHORT.get(name, fields[name]) for name in chosen}))
    odd = st.just({}) | st.just({}) | st.dictionaries(TEXTS, TEXTS, max_size=1)
    return st.builds(
        lambda *parts: as_json({key: value for part in parts for key, value in part.items()}), odd, base, extra
    )


def as_json(value):
    """JSON as Python writes it: NaN and lone surrogates included."""
    return json.dumps(value, default=lambda bad: repr(bad)[:100]).encode("utf-8", "surrogatepass")


def requests():
    """[(what it is, path, body)]."""
    paths = st.sampled_from(sorted(ROUTES))
    shaped = paths.flatmap(lambda path: st.tuples(st.just(path), json_bodies(ROUTES[path])))
    return st.one_of(
        shaped.map(lambda one: [(what, one[0], body) for what, body in mutants("shaped", one[1])]),
        shaped.map(lambda one: [("shaped", *one)]),
        st.tuples(paths, NOISE).map(lambda one: [("noise", *one)]),
    )
