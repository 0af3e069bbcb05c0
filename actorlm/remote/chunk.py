"""What one event of a stream says, of chat and text completions alike. Fields that are not here are skipped."""

from typing import Any

import msgspec

from actorlm.remote.failure import Failure

DONE = b"[DONE]"


class Delta(msgspec.Struct, frozen=True):
    """What is new of a message. Servers spell what a model thinks in two ways."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class Choice(msgspec.Struct, frozen=True):
    """What is new of a choice: `text` of a completion, `delta` of a chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def says(self) -> bool:
        """Whether there is anything that a user would see."""
        if self.text:
            return True
        new = self.delta
        return new is not None and bool(new.content or new.reasoning_content or new.reasoning or new.tool_calls)


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the whole request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """One event."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(Chunk)


def decode(data: bytes) -> Chunk:
    """Raises Failure for what is no event of a completion, and for an error that the server sent as one."""
    try:
        chunk = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure("unreadable event", f"{error}: {data[:200]!r}") from None
    if chunk.error is not None:
        raise Failure("error in the stream", message_of(chunk.error))
    return chunk


def message_of(error: Any) -> str:
    """The text of an error as servers write it, an object with a message or whatever else."""
    if isinstance(error, dict) and "message" in error:
        return str(error["message"])
    return str(error)
