"""E11: what is long, or of a length that nobody knows, is rendered and tokenized beside the loop, which goes on."""

import asyncio
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from actorlm.actors.backend import SHORT_CHARACTERS, ServingBackend
from actorlm.api.ports import Rendering
from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.resolve import resolve
from actorlm.text.chat_template import ChatTemplate
from actorlm.text.tokenizer import load_tokenizer

LONG = "x" * (SHORT_CHARACTERS + 1)
PATIENCE_S = 20
TEMPLATE = "{{ date }}{% for document in documents or [] %}{{ document.text }}{% endfor %}"
TEMPLATE += "{% for message in messages %}{{ message.content }}{% endfor %}"


class Watched:
    """Calls what it is made of, and waits in each call of some methods until the loop has gone on.

    `elsewhere` says for each such call whether it was in another thread than the loop's.
    """

    def __init__(self, inner, *methods):
        self._inner = inner
        self._methods = methods
        self._loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()
        self.elsewhere = []

    def __getattr__(self, name):
        method = getattr(self._inner, name)
        return self._call(method) if name in self._methods else method

    def _call(self, method):
        def call(*args, **kwargs):
            self.elsewhere.append(threading.current_thread() is not self._thread)
            if self.elsewhere[-1]:
                turned = threading.Event()
                self._loop.call_soon_threadsafe(turned.set)
                assert turned.wait(PATIENCE_S), "the loop waits for it"
            return method(*args, **kwargs)

        return call


@pytest.fixture
async def backend():
    model = describe(resolve(None, null=True, progress=lambda *_: None), served_model_name=None, max_model_len=None)
    tokenizer = Watched(load_tokenizer(model), "encode", "encode_end", "decode")
    written = ChatTemplate({"default": TEMPLATE}, {}, lambda: datetime.now(UTC), "the test")
    template = Watched(written, "render")
    one = ServingBackend(SimpleNamespace(kv_capacity_tokens=0), model, tokenizer, template, 16)
    one.watched = tokenizer, template
    return one


CHATS = {
    "variables": ("Hi", Rendering(variables={"date": "today"})),
    "documents": ("Hi", Rendering(documents=[{"title": "a", "text": "b"}])),
    "a long message": (LONG, Rendering()),
    "a long message of which the end counts": (LONG, Rendering(last=10)),
    "many messages": ([LONG[:1000]] * 5, Rendering()),
}


@pytest.mark.parametrize("what", CHATS)
async def test_e11_a_chat_is_rendered_beside_the_loop(backend, what):
    contents, rendering = CHATS[what]
    contents = [contents] if isinstance(contents, str) else contents
    ids = await backend.render_chat([{"role": "user", "content": content} for content in contents], rendering)
    assert ids
    assert [one.elsewhere for one in backend.watched] == [[True], [True]]


async def test_a37_what_is_long_in_any_part_of_a_message_counts(backend):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": LONG}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert await backend.render_chat(messages, Rendering())
    assert [one.elsewhere for one in backend.watched] == [[True], [True]]


async def test_a_short_chat_is_rendered_at_once(backend):
    """Which shows that the tests above can tell."""
    assert await backend.render_chat([{"role": "user", "content": "Hi"}], Rendering())
    assert [one.elsewhere for one in backend.watched] == [[False], [False]]


@pytest.mark.parametrize("texts", [[LONG], [LONG[:1000]] * 5], ids=["one", "many"])
@pytest.mark.parametrize("last", [None, 10])
async def test_e10_e11_long_texts_are_tokenized_beside_the_loop(backend, texts, last):
    assert len(await backend.encode(texts, add_special_tokens=True, last=last)) == len(texts)
    assert backend.watched[0].elsewhere == [True] * len(texts)


async def test_e11_many_ids_become_text_beside_the_loop(backend):
    options = {"skip_special_tokens": True, "spaces_between_special_tokens": True}
    assert await backend.decode([65] * (SHORT_CHARACTERS + 1), **options) == "A" * (SHORT_CHARACTERS + 1)
    assert backend.watched[0].elsewhere == [True]
