"""Streams of many sorts, over HTTP and over ZeroMQ, and all that each comes to.

`REQUESTS` are the sorts. `Stream` reads one to its end and knows meanwhile how far it has got. Two answers to the same
request are equal if their texts, ids, reasons, log-probabilities and tokens of usage are.
"""

import asyncio
import json
import random
import re
import time
from itertools import takewhile

from exchange import PATHS
from tree import PATIENCE

COMPLETIONS, CHAT = PATHS
COUNT = 32
TOKENS = 200
LIMIT_S = 120
"""A stream that takes longer has no end."""

GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.0, "top_p": 0.98}
PENALTIES = {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.2}
SORTS = (
    ("http", COMPLETIONS, GREEDY),
    ("http", COMPLETIONS, {**SEEDED, "n": 2}),
    ("http", CHAT, {**GREEDY, "logprobs": True, "top_logprobs": 2}),
    ("http", COMPLETIONS, {**SEEDED, **PENALTIES}),
    ("zmq", COMPLETIONS, {**GREEDY, "logprobs": 1}),
    ("zmq", CHAT, {**SEEDED, **PENALTIES, "n": 2}),
    ("http", COMPLETIONS, {**GREEDY, "stop": "?"}),
    ("http", COMPLETIONS, {**SEEDED, "logprobs": 3, "echo": True, "min_tokens": 10, "ignore_eos": False}),
)
"""How it is asked, where, and with which fields. The stop string is chosen for each, see `with_stop`."""


class Request:
    """One request, to be asked any number of times."""

    def __init__(self, number, how, path, fields, *, longest, tokens=TOKENS):
        draw = random.Random(number)
        self.number = number
        self.how = how
        self.path = path
        self.fields = {"ignore_eos": True, "max_tokens": tokens, "seed": number} | fields
        prompt = "".join(draw.choices("abcdefgh ijklm", k=draw.randint(1, longest)))
        self.about = {"prompt": prompt} if path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}

    @property
    def choices(self):
        """How many choices it has."""
        return self.fields.get("n", 1)

    def __repr__(self):
        return f"request {self.number}: {self.how} {self.path} {self.fields}"

    def with_stop(self, text):
        """Takes a stop string out of the last third of its text: in the middle of a request, over several tokens."""
        found = [*re.finditer(r"[ -~]{2,3}", text[2 * len(text) // 3 :])]
        self.fields["stop"] = found[0][0] if found else "never said"


def requests(*, longest=150, tokens=TOKENS, count=COUNT):
    """Of every sort as many as of the others, prompts of up to `longest` characters."""
    return [Request(number, *SORTS[number % len(SORTS)], longest=longest, tokens=tokens) for number in range(count)]


class Stream:
    """One request that is under way. `answer` is what it has come to; `failure` says why it is broken."""

    def __init__(self, request):
        self.request = request
        self.choices = {}
        self.usage = None
        self.failure = ""
        self.ended = False
        self.last_event = time.monotonic()
        self.longest_pause_s = 0.0

    @property
    def answer(self):
        return {"choices": self.choices, "usage": self.usage}

    def flows_since(self, moment):
        """Whether anything has come since then."""
        return bool(self.choices) and self.last_event > moment

    async def read(self, tree, http, client):
        """Asks and reads to the end, whatever that is; never raises."""
        try:
            async with asyncio.timeout(LIMIT_S * PATIENCE):
                await (self._read_http(tree, http) if self.request.how == "http" else self._read_zmq(client))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the stream is broken
            self.failure = f"{type(error).__name__}: {error}"
        if not self.failure and not self._is_whole():
            self.failure = "the stream ended before all of its choices"
        self.ended = True

    def _is_whole(self):
        finished = [one for one in self.choices.values() if one["finish"]]
        return self.usage is not None and len(finished) == self.request.choices

    def _heard(self):
        now = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now - self.last_event)
        self.last_event = now

    def _choice(self, index):
        return self.choices.setdefault(index, {"text": "", "ids": [], "finish": None, "scores": []})

    async def _read_http(self, tree, http):
        body = {
            "model": tree.model, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
        } | self.request.fields | self.request.about  # fmt: skip
        async with http.stream("POST", self.request.path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                raise AssertionError(f"{response.status_code}: {response.text}")
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line:
                    self._heard()
                    self._take(json.loads(line.removeprefix("data: ")))
        raise AssertionError("no [DONE]")

    def _take(self, event):
        assert "error" not in event, event["error"]
        if event["usage"]:
            self.usage = [event["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion", "total")]
        for said in event["choices"]:
            choice = self._choice(said["index"])
            assert choice["finish"] is None, "an event behind the end"
            choice["text"] += said["text"] if "text" in said else said["delta"].get("content") or ""
            choice["ids"] += said.get("token_ids") or ()
            choice["finish"] = said["finish_reason"]
            choice["scores"] += _entries(said.get("logprobs") or {})

    async def _read_zmq(self, client):
        fields = self.request.fields | self.request.about
        if self.request.path == COMPLETIONS:
            deltas = client.generate(fields.pop("prompt"), **fields)
        else:
            deltas = client.chat(fields.pop("messages"), **fields)
        async for delta in deltas:
            self._heard()
            choice = self._choice(delta.choice)
            assert choice["finish"] is None, "a delta behind the end"
            choice["text"] += delta.text
            choice["ids"] += delta.token_ids
            choice["finish"] = delta.finish
            choice["scores"] += [repr(entry) for entry in delta.scores.output] if delta.scores is not None else ()
        usage = deltas.usage
        self.usage = [usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens]


def difference(calm, found):
    """Where an answer differs from the undisturbed one, in words; empty if nowhere."""
    if calm["usage"] != found["usage"]:
        return f"usage {found['usage']}, not {calm['usage']}"
    for index, one in calm["choices"].items():
        for name, value in one.items():
            if value != (other := found["choices"][index][name]):
                return (
                    f"choice {index}: {name} differ from {_first(value, other)} on: {other!r:.300}, not {value!r:.300}"
                )
    return ""


def _first(value, other):
    """The first place in which two sequences differ."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(value or (), other or (), strict=False))
    return sum(1 for _ in same)


def _entries(logprobs):
    """One entry for each token of either route's log-probabilities."""
    if "content" in logprobs:
        return logprobs["content"]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    columns = [logprobs[name] for name in names if logprobs.get(name)]
    return list(zip(*columns, strict=True))
