"""A backend without a tree, and the two ways to talk to the API: in the loop, and over a real socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from actorlm.api.app import Application, create_app
from actorlm.api.callers import Caller
from actorlm.api.ports import Delta, Envelope, Limits, Placement, Rendering, Submission
from actorlm.api.server import HttpServer
from actorlm.api.tls import Tls
from actorlm.checkpoint.description import ModelDescription
from actorlm.config import HttpConfig
from actorlm.errors import ActorlmError, ContextLengthExceeded
from actorlm.logprobs import Scores
from actorlm.messages.actor import TreeState
from actorlm.wire import int32

VOCAB_SIZE = 257
BOS = 256
CONTEXT = 64
WORDS = ("Hel", "lo", ", ", "wör", "ld", "!")


class FakeGeneration:
    """Each step gives one word to every choice that goes on. `hold` stops it before that many steps."""

    def __init__(self, backend: "FakeBackend", submissions: Sequence[Submission]) -> None:
        self.backend = backend
        self.submissions = submissions
        self.steps = self.read_ons = 0
        self.aborted = asyncio.Event()
        self.finished: set[int] = set()

    def __aiter__(self):
        return self

    async def __anext__(self):
        await self._step_allowed()
        if self.aborted.is_set() or len(self.finished) == len(self.submissions):
            raise StopAsyncIteration
        if self.backend.fail_at is not None and self.steps == self.backend.fail_at[0]:
            raise self.backend.fail_at[1]
        step, self.steps = self.steps, self.steps + 1
        going_on = [i for i in range(len(self.submissions)) if i not in self.finished]
        return [self._delta(choice, step) for choice in going_on]

    async def _step_allowed(self) -> None:
        await asyncio.sleep(0)
        while self.steps in self.backend.hold and not self.aborted.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _delta(self, choice: int, step: int) -> Delta:
        submission = self.submissions[choice]
        words = self.backend.words(submission)
        finish = "length" if step + 1 >= submission.sampling.max_tokens else None
        if step + 1 >= len(words) and not submission.sampling.ignore_eos:
            finish = "stop"
        if finish:
            self.finished.add(choice)
        scores = self.backend.scores(submission, step)
        cached, ids = self.backend.cached_tokens, int32([step + 1])
        return Delta(choice, words[step % len(words)], 1, finish, cached, ids, scores)

    def read_on(self) -> None:
        self.read_ons += 1

    def abort(self) -> None:
        self.aborted.set()


class FakeBackend:
    """Bytes are token ids; answers are WORDS."""

    def __init__(self) -> None:
        self.model = ModelDescription(
            path="", format="bytes", name="fake", architecture="none", vocab_size=VOCAB_SIZE,
            max_model_len=CONTEXT, bos_token_id=BOS, eos_token_ids=(),
        )  # fmt: skip
        self.served_name = "org/fake"
        self.created = 1_700_000_000
        self.state = TreeState.READY
        self.limits = Limits(CONTEXT, 8)
        self.bos = [BOS]
        self.cached_tokens = 0
        self.words: Callable[[Submission], Sequence[str]] = lambda _: WORDS
        self.scores: Callable[[Submission, int], Scores | None] = lambda *_: None
        self.hold: set[int] = set()
        self.fail_at: tuple[int, Exception] | None = None
        self.refusal: ActorlmError | None = None
        self.generations: list[FakeGeneration] = []
        self.conversations: list[Sequence[dict[str, Any]]] = []
        self.renderings: list[Rendering] = []
        self.envelopes: list[Envelope] = []

    @property
    def trace_ids(self) -> list[str]:
        return [one.request_id for one in self.envelopes]

    @property
    def placements(self) -> list[Placement]:
        return [one.placement for one in self.envelopes]

    @property
    def callers(self) -> list[Caller]:
        return [one.caller for one in self.envelopes]

    @property
    def submissions(self) -> list[Submission]:
        return [one for generation in self.generations for one in generation.submissions]

    def submit(self, submissions: Sequence[Submission], envelope: Envelope) -> FakeGeneration:
        if self.refusal is not None:
            raise self.refusal
        self.envelopes.append(envelope)
        self.generations.append(FakeGeneration(self, submissions))
        return self.generations[-1]

    async def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool, last: int | None = None
    ) -> list[list[int]]:
        await asyncio.sleep(0)
        if last is None and any(len(text) > 100 * CONTEXT for text in texts):
            raise ContextLengthExceeded("the text is too long in any case")
        return [((self.bos if add_special_tokens else []) + list(text.encode()))[-(last or 0) :] for text in texts]

    async def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool, spaces_between_special_tokens: bool
    ) -> str:
        return bytes(one for one in ids if one != BOS).decode(errors="replace")

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        if token_id == BOS:
            return b"" if skip_special_tokens else b"<s>"
        return bytes([token_id])

    def token(self, token_id: int) -> str:
        return f"<{token_id}>"

    async def render_chat(self, messages: Sequence[dict[str, Any]], rendering: Rendering) -> list[int]:
        self.conversations.append(messages)
        self.renderings.append(rendering)
        text = "".join(one["content"] for one in messages)
        return (await self.encode([text], add_special_tokens=True, last=rendering.last))[0]

    async def metrics(self) -> bytes:
        return b"actorlm:num_requests_running 0\n"


def make_client(
    backend: FakeBackend, config: HttpConfig | None = None, app: Application | None = None, **options: Any
) -> httpx.AsyncClient:
    app = app or create_app(backend, config or HttpConfig(), **options)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


@contextlib.asynccontextmanager
async def serving(app: Any, tls: Tls | None = None, **limits: int) -> AsyncIterator[str]:
    """The address of `app` on a socket of its own."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        server = HttpServer(app, sock, tls, **limits)
        await server.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
        finally:
            await server.stop(0.2)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "org/fake", "messages": [{"role": "user", "content": "Hi"}], **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "org/fake", "prompt": "Hi", **fields}
