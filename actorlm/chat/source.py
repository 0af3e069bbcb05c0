"""Where answers come from: a running tree over ZeroMQ, or any OpenAI-compatible server over HTTP."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from actorlm.client import Client
from actorlm.errors import ConfigError
from actorlm.remote.chunk import Chunk
from actorlm.remote.chunks import Chunks
from actorlm.remote.server import Server

Messages = Sequence[Mapping[str, Any]]
Show = Callable[[str], None]
"""Takes new text of an answer."""

PATH = "/v1/chat/completions"


class Source(Protocol):
    """Whom to ask. Every method raises errors of ours; cancelling `answer` withdraws the request."""

    async def open(self) -> str:
        """The name of the model, once it can be asked."""

    async def answer(self, messages: Messages, fields: Mapping[str, Any], show: Show) -> None:
        """Asks and shows the answer as it comes; `fields` are those of a chat completion."""

    async def close(self) -> None:
        """Nothing more will be asked."""


class OverZeroMQ:
    """A tree of this user."""

    def __init__(self, client: Client, model: str | None) -> None:
        self._client = client
        self._model = model

    async def open(self) -> str:
        """Connects."""
        await self._client.__aenter__()
        self._model = self._model or self._client.model
        return self._model

    async def answer(self, messages: Messages, fields: Mapping[str, Any], show: Show) -> None:
        """Asks over the one connection."""
        async for delta in self._client.chat(messages, model=self._model, **fields):
            show(delta.text)

    async def close(self) -> None:
        """Disconnects."""
        await self._client.__aexit__(None, None, None)


class OverHttp:
    """A server by its URL."""

    def __init__(self, server: Server, model: str | None) -> None:
        self._server = server
        self._model = model

    async def open(self) -> str:
        """Asks for the model, unless it is known."""
        self._model = self._model or await self._server.model()
        return self._model

    async def answer(self, messages: Messages, fields: Mapping[str, Any], show: Show) -> None:
        """One request; the connection of one that is withdrawn is closed, which tells the server."""
        chunks = Chunks()

        def receive(data: bytes) -> None:
            for chunk in chunks.feed(data):
                show(_text(chunk))

        request = self._server.post(PATH, {"model": self._model, **fields, "messages": messages, "stream": True})
        await self._server.stream(request, receive)
        for chunk in chunks.end():
            show(_text(chunk))

    async def close(self) -> None:
        """Nothing is kept open between answers."""


def source_at(url: str | None, *, model: str | None, api_key: str | None, default_key: str | None) -> Source:
    """`url` is that of a server, an address or run directory as `actorlm ps` shows it, or None for what runs."""
    if url is not None and url.startswith(("http://", "https://")):
        return OverHttp(Server(url, api_key=api_key or default_key), model)
    if api_key is not None:
        raise ConfigError("--api-key goes with --url http://...; without HTTP no key is asked for")
    return OverZeroMQ(Client(url), model)


def _text(chunk: Chunk) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices if choice.delta is not None)
