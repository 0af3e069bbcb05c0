"""What `actorlm bench serve` asks of a server: how many requests, how long, and when. A seed decides all of it."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from actorlm.errors import ConfigError

Api = Literal["completions", "chat"]
PromptKind = Literal["text", "ids"]

PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

DEFAULT_VOCAB_SIZE = 256
"""Every vocabulary has so many."""
WARM_UP_TOKENS = 32
"""Answers of the warm-up are no longer: it is about first times, not about lengths."""


class Span(msgspec.Struct, frozen=True):
    """Tokens: each number from `low` to `high` is as likely."""

    low: int
    high: int

    def draw(self, source: random.Random) -> int:
        """One of them."""
        return source.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """`request_rate` is in requests a second, None for all at once; `vocab_size` bounds random ids."""

    api: Api = "completions"
    prompts: PromptKind = "text"
    num_prompts: int = 64
    input_len: Span = Span(128, 128)
    output_len: Span = Span(64, 64)
    shared_prefix: int = 0
    request_rate: float | None = None
    max_concurrency: int | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    vocab_size: int = DEFAULT_VOCAB_SIZE
    seed: int = 0


class Request(msgspec.Struct, frozen=True):
    """One request: when it is due, in seconds from the beginning, and its tokens."""

    due: float
    input_len: int
    output_len: int


def check(traffic: Traffic) -> None:
    """Raises ConfigError for traffic that contradicts itself."""
    if traffic.shared_prefix >= traffic.input_len.low:
        raise ConfigError(
            f"--shared-prefix is {traffic.shared_prefix} of {traffic.input_len} tokens a prompt; it must be less"
        )
    if traffic.api == "chat" and traffic.prompts == "ids":
        raise ConfigError("--prompts ids is for --api completions; a chat is made of texts")


def requests(traffic: Traffic, source: random.Random) -> list[Request]:
    """All requests, in the order they are due. The gaps of a rate are exponential: arrivals are a Poisson process."""
    due, made = 0.0, []
    for _ in range(traffic.num_prompts):
        made.append(Request(due, traffic.input_len.draw(source), traffic.output_len.draw(source)))
        if traffic.request_rate is not None:
            due += source.expovariate(traffic.request_rate)
    return made


def for_warm_up(traffic: Traffic, count: int) -> Traffic:
    """So many requests like those of `traffic`, all at once and with short answers."""
    short = Span(min(WARM_UP_TOKENS, traffic.output_len.low), min(WARM_UP_TOKENS, traffic.output_len.high))
    return msgspec.structs.replace(traffic, num_prompts=count, output_len=short, request_rate=None)


def fields(traffic: Traffic, model: str, prompt: Sequence[int] | str, output_len: int) -> Mapping[str, Any]:
    """The body of a request."""
    chat = traffic.api == "chat"
    return {
        "model": model,
        **({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}),
        "max_tokens": output_len,
        "temperature": traffic.temperature,
        **({"ignore_eos": True} if traffic.ignore_eos else {}),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def parse_span(text: str) -> Span:
    """`128` or `64-256`. Raises ValueError."""
    low, to, high = text.partition("-")
    span = Span(int(low), int(high if to else low))
    if not 1 <= span.low <= span.high <= 1 << 24:
        raise ValueError(text)
    return span


def parse_rate(text: str) -> float | None:
    """A positive number, or `inf` for all at once. Raises ValueError."""
    rate = float(text)
    if not rate > 0:
        raise ValueError(text)
    return None if math.isinf(rate) else rate
