"""The `openai` package as people use it, against a whole tree."""

import asyncio
import json
import time

import httpx
import null_model
import openai
import pytest
from null_model import bias
from tree import Tree

pytestmark = [pytest.mark.serving]

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
KEY = "sk-test-0123456789"


@pytest.fixture(scope="module")
def tree():
    options = ("--max-model-len", 2048, "--max-choices", 16)
    with Tree("--model-impl", "null", *options, env={"ACTORLM_API_KEY": KEY}) as tree:
        tree.client.headers["authorization"] = f"Bearer {KEY}"
        yield tree.wait_ready()


@pytest.fixture
def client(tree):
    with openai.OpenAI(base_url=f"{tree.url}/v1", api_key=KEY, max_retries=0, timeout=60) as one:
        yield one


@pytest.fixture
async def async_client(tree):
    async with openai.AsyncOpenAI(base_url=f"{tree.url}/v1", api_key=KEY, max_retries=0, timeout=60) as one:
        yield one


@pytest.fixture
def model(client):
    return client.models.list().data[0].id


def test_models(client, model):
    found = client.models.retrieve(model)
    assert (found.id, found.object) == (model, "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_chat(client, model):
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_completion_tokens=5, logit_bias=bias(b"A")
    )
    assert answer.object == "chat.completion"
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "AAAAA", "length")
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer._request_id


def test_chat_streamed(client, model):
    options = {"model": model, "messages": MESSAGES, "max_tokens": 30, "seed": 5}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        whole.choices[0].message.content
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.model_dump() == whole.usage.model_dump()
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_chat_by_the_streaming_helper(client, model):
    """`.stream()` collects the chunks; its checks of their order and indexes are stricter than ours."""
    options = {
        "model": model,
        "messages": MESSAGES,
        "n": 2,
        "seed": 5,
        "logit_bias": bias(range(32, 127)),
        "stop": "   ",
    }
    with client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**options)
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert [choice.message.content for choice in final.choices] == [choice.message.content for choice in whole.choices]
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]


def test_a_conversation(client, model):
    """The answer is sent back as the SDK holds it, with all fields that it has."""
    first = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=5, logit_bias=bias(b"A"))
    message = first.choices[0].message
    for turn in (message, message.model_dump()):
        messages = [*MESSAGES, turn, {"role": "user", "content": [{"type": "text", "text": "And?"}]}]
        second = client.chat.completions.create(model=model, messages=messages, max_tokens=5)
        assert second.usage.prompt_tokens > first.usage.prompt_tokens + 5


@pytest.mark.parametrize("prompt", ["Hi", [72, 105], [[72, 105]], ["Hi"]], ids=str)
def test_completions(client, model, prompt):
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=12, seed=3)
    expected = null_model.answer([72, 105], 12, seed=3)
    assert (answer.object, answer.choices[0].text) == ("text_completion", expected)
    streamed = client.completions.create(model=model, prompt=prompt, max_tokens=12, seed=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected


def test_completions_with_echo_and_stop(client, model):
    forced = {"logit_bias": bias(b"A"), "max_tokens": 20}
    answer = client.completions.create(model=model, prompt="Hi ", echo=True, stop=["AAAA"], **forced)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hi ", "stop")


def test_n(client, model):
    answer = client.chat.completions.create(model=model, messages=MESSAGES, n=16, max_tokens=8, seed=1)
    assert [choice.index for choice in answer.choices] == list(range(16))
    assert len({choice.message.content for choice in answer.choices}) > 8
    batch = client.completions.create(model=model, prompt=["a", "b"], n=3, max_tokens=2, echo=True)
    assert [choice.text[0] for choice in batch.choices] == list("aaabbb")


async def test_50_calls_at_once(async_client, tree):
    """Half of them streamed; each gets the answer to its own prompt."""
    model = (await async_client.models.list()).data[0].id

    async def ask(seed):
        options = {"model": model, "prompt": [seed], "seed": seed, "max_tokens": 30}
        if seed % 2:
            return (await async_client.completions.create(**options)).choices[0].text
        pieces = [
            chunk.choices[0].text async for chunk in await async_client.completions.create(**options, stream=True)
        ]
        return "".join(pieces)

    assert await asyncio.gather(*map(ask, range(50))) == [null_model.answer([i], 30, seed=i) for i in range(50)]


async def test_a_stream_that_is_closed_ends(async_client, tree):
    model = (await async_client.models.list()).data[0].id
    endless = {"max_tokens": 2000, "extra_body": {"ignore_eos": True}, "stream": True}
    streams = [await async_client.completions.create(model=model, prompt="Hi", **endless) for _ in range(5)]
    for stream in streams:
        await anext(aiter(stream))
        await stream.close()
    tree.settled(1)


ERRORS = {
    "unknown model": ({"model": "nobody"}, openai.NotFoundError, "model", "model_not_found"),
    "bad value": ({"temperature": 9}, openai.BadRequestError, "temperature", None),
    "unknown field": ({"extra_body": {"colour": "red"}}, openai.BadRequestError, "colour", None),
    "too many choices": ({"n": 17}, openai.BadRequestError, "n", None),
    "long prompt": (
        {"messages": [{"role": "user", "content": "x" * 3000}]}, openai.BadRequestError, "messages",
        "context_length_exceeded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_its_exceptions(client, model, name, stream):
    fields, kind, param, code = ERRORS[name]
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": model, "messages": MESSAGES, "stream": stream} | fields)
    error = caught.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.body["message"]
    assert error.request_id


def test_a_wrong_key(tree):
    for key in ("sk-wrong", KEY[:-1], KEY + "x"):
        client = openai.OpenAI(base_url=f"{tree.url}/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"


def test_an_unknown_route(client, model):
    with pytest.raises(openai.NotFoundError, match="is no route of this server"):
        client.embeddings.create(model=model, input="x")


class Attempts:
    """Every request that an SDK sends over `http`, and how long it waited before those that are retries."""

    def __init__(self):
        self.statuses, self.waits = [], []
        self._refused = {}
        self.http = httpx.AsyncClient(event_hooks={"request": [self._sent], "response": [self._answered]}, timeout=60)

    async def _sent(self, request):
        if int(request.headers["x-stainless-retry-count"]):
            asked, at = self._refused.pop(json.loads(request.content)["seed"])
            self.waits.append((time.monotonic() - at, asked))

    async def _answered(self, response):
        self.statuses.append(response.status_code)
        if response.status_code == 429:
            seed = json.loads(response.request.content)["seed"]
            self._refused[seed] = int(response.headers["retry-after"]), time.monotonic()


def arrivals(tree):
    """What has come to the server, those that it refused included."""
    return tree.total("requests_accepted_total")


@pytest.fixture
def full_tree(tree_of):
    return tree_of("--model-impl", "null", "--max-num-seqs", 1, "--max-waiting", 1, "--null-step-ms", 5)


async def test_c23_a_full_server_is_its_rate_limit_error(full_tree):
    """And its retries, which heed Retry-After, get through once there is room. The server sees each of them once."""
    tree, attempts = full_tree, Attempts()
    async with openai.AsyncOpenAI(
        base_url=f"{tree.url}/v1", api_key="x", max_retries=0, http_client=attempts.http
    ) as client:
        ask = {"model": tree.model, "prompt": "x", "max_tokens": 40, "extra_body": {"ignore_eos": True}}
        asked = [ask | {"seed": number} for number in range(5)]
        answers = await asyncio.gather(*(client.completions.create(**one) for one in asked), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
        assert 0 < len(refused) < 5
        assert all(1 <= int(error.response.headers["retry-after"]) <= 30 for error in refused)
        assert len(attempts.statuses) == 5
        before, attempts.statuses[:] = arrivals(tree), []
        patient = client.with_options(max_retries=8)
        answers = await asyncio.gather(*(patient.completions.create(**one) for one in asked))
        assert all(answer.usage.completion_tokens == 40 for answer in answers)
    assert sorted(attempts.statuses) == [200] * 5 + [429] * len(attempts.waits)
    assert arrivals(tree) - before == len(attempts.statuses)
    assert attempts.waits
    for waited, retry_after in attempts.waits:
        assert waited > retry_after - 0.1, attempts.waits
    tree.settled()


async def test_c23_an_attempt_that_timed_out_is_not_computed_beside_the_next(full_tree):
    tree = full_tree
    before = arrivals(tree)
    async with openai.AsyncOpenAI(base_url=f"{tree.url}/v1", api_key="x", max_retries=1, timeout=2) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.completions.create(
                model=tree.model, prompt="x", max_tokens=4000, extra_body={"ignore_eos": True}
            )
    tree.settled(1)
    assert arrivals(tree) - before == 2
    assert tree.metrics()["request_success_total", (("finished_reason", "abort"),)] == 2
