"""Request bodies: read within limits, decoded strictly, refused with a reason.

Strictly means: JSON in UTF-8, each object's keys unique, each value of its type. Litestar would take the text
"5" for the number 5, and the last of two equal keys.
"""

import asyncio
import json
import re
from functools import cache
from typing import Any

import msgspec
from litestar import Request
from litestar.types import Receive, ReceiveMessage, Scope, Send

from actorlm.api.errors import ClientGone, RequestTimeout, UnsupportedMedia, invalid_body
from actorlm.errors import BadRequest

SLOW = 4
MIN_RATE = 32_768
"""Bytes a second, after the first SLOW times the timeout."""
MAX_VALUES = 2**21
MAX_OTHERS = 2**19
"""Texts, lists and objects. An empty list takes 3 bytes of a body, 60 of memory, and time of the garbage collector."""

TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body, if a handler takes one, is JSON of the handler's type.

    `app.state.body_timeout_s` is how long the body may stand still.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, _patient(receive, scope["litestar_app"].state.body_timeout_s), send)

    async def body(self) -> bytes:
        """The whole body. Raises UnsupportedMedia before reading, then BadRequest or one of its subclasses."""
        check_media(self.headers.get("content-type"), self.headers.get("content-encoding"))
        body = await super().body()
        if not body:
            raise BadRequest("the body is empty; send a JSON object")
        return body

    async def json(self) -> Any:
        """The body as the type of the handler's `data`."""
        return decode(await self.body(), self.route_handler.parsed_data_field.annotation)  # type: ignore[union-attr]


def _patient(receive: Receive, seconds: float) -> Receive:
    """Waits `seconds` for each piece, and for all of them SLOW times that and what their size takes at MIN_RATE."""
    clock = asyncio.get_running_loop().time
    end = clock() + SLOW * seconds

    async def receive_in_time() -> ReceiveMessage:
        nonlocal end
        try:
            async with asyncio.timeout(min(seconds, end - clock())):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout(
                f"no more of the body arrived within {seconds:g} s, or it came slower than {MIN_RATE} bytes a second"
            ) from None
        if message["type"] == "http.request":
            end += len(message["body"]) / MIN_RATE
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left before the body had arrived")
        return message

    return receive_in_time


def check_media(content_type: str | None, encoding: str | None) -> None:
    """Raises UnsupportedMedia for a body that is not plain JSON."""
    media = (content_type or "").split(";", 1)[0].strip().lower()
    if media != "application/json":
        raise UnsupportedMedia(f"content-type is {media or 'missing'}; it must be application/json")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise UnsupportedMedia(f"content-encoding is {encoding}; send the body as it is")


@cache
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(body: bytes, kind: type) -> Any:
    """`body` as a struct of type `kind`. Raises BadRequest naming the field at fault."""
    check_values(body)
    try:
        request = _decoder(kind).decode(body)
        json.loads(body, object_pairs_hook=_unique)
    except msgspec.ValidationError as error:
        raise invalid_body(error, body) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    return request


def check_values(body: bytes) -> None:
    """Raises BadRequest for more values than any request needs: decoding them could take gigabytes, and seconds."""
    if _fits(_commas(body), _brackets(body) + body.count(b'"')):
        return
    commas = others = end = 0  # some of these are characters of texts: count again, outside of them
    for text in TEXT.finditer(body):
        commas += _commas(body, end, text.start())
        others += _brackets(body, end, text.start()) + 1
        end = text.end()
        if others > MAX_OTHERS:
            break
    if not _fits(commas + _commas(body, end), others + _brackets(body, end)):
        raise BadRequest(
            f"the body holds more than {MAX_VALUES} values, or more than {MAX_OTHERS} texts, lists and objects;"
            " send several requests"
        )


def _fits(commas: int, others: int) -> bool:
    return commas <= MAX_VALUES and others <= MAX_OTHERS


def _commas(body: bytes, start: int = 0, end: int | None = None) -> int:
    return body.count(b",", start, end)


def _brackets(body: bytes, start: int = 0, end: int | None = None) -> int:
    return body.count(b"[", start, end) + body.count(b"{", start, end)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise BadRequest(f"the body has the key {name} twice in one object", param=name)
        seen.add(name)
