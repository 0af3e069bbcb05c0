"""An OpenAI-compatible server: which models it has, and streams of completions."""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from actorlm.errors import ConfigError
from actorlm.remote.address import Address, parse
from actorlm.remote.chunk import message_of
from actorlm.remote.connection import Receive, Refusal, connect
from actorlm.remote.failure import Failure


class Server:
    """Each request has a connection of its own. `timeout_s` bounds a whole request. Every method raises Failure."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        """Raises ConfigError for what is no base URL, or no key."""
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("--api-key has characters that no header can carry")
        self._address: Address = parse(url)
        self._tls = ssl.create_default_context() if self._address.secure else None
        self._timeout_s = timeout_s
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = (
            f"Host: {self._address.netloc}\r\nUser-Agent: actorlm\r\nAccept: */*\r\n{authorization}"
            "Content-Type: application/json\r\nConnection: close\r\n"
        )

    async def model(self) -> str:
        """The first model that `/v1/models` names."""
        found = await self._json(self._request("GET", "/v1/models"))
        data = found.get("data") if isinstance(found, dict) else None
        if not (isinstance(data, list) and data and isinstance(data[0], dict) and isinstance(data[0].get("id"), str)):
            raise Failure("no model", "/v1/models names none; say --model")
        return str(data[0]["id"])

    async def answer(self, path: str, fields: Mapping[str, Any]) -> Any:
        """The whole answer to a request that is not streamed, decoded."""
        return await self._json(self.post(path, fields))

    def post(self, path: str, fields: Mapping[str, Any]) -> bytes:
        """A request, ready to be sent with `stream`."""
        return self._request("POST", path, msgspec.json.encode(fields))

    async def stream(self, request: bytes, receive: Receive) -> None:
        """Sends a request; gives on the body of its answer as it comes in."""
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await connect(self._address, self._tls)
                await connection.exchange(request, receive)
        except TimeoutError:
            raise Failure("timeout", f"no whole answer within {self._timeout_s:g} s") from None
        except Refusal as refusal:
            raise _failure(refusal) from None

    async def _json(self, request: bytes) -> Any:
        body = bytearray()
        await self.stream(request, body.extend)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Failure("no JSON", f"the server answered {bytes(body[:200])!r}") from None

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        start = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n{self._headers}"
        return f"{start}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _failure(refusal: Refusal) -> Failure:
    """Named after the status and the code that the body gives."""
    message: str = refusal.body[:500].decode(errors="replace").strip()
    code = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        said = msgspec.json.decode(refusal.body)
        error = said.get("error", said) if isinstance(said, dict) else said
        message = message_of(error)
        code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return Failure(f"HTTP {refusal.status} {code}" if isinstance(code, str) else f"HTTP {refusal.status}", message)
