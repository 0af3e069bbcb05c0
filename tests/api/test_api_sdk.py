"""The openai SDK over a real socket: chat, completions, streams, async, n, errors as its classes."""

import asyncio
import time

import openai
import pytest
from fake_backend import serving

from actorlm.api.app import create_app
from actorlm.config import HttpConfig
from actorlm.errors import Interrupted, Overloaded, Unavailable

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def sdk(backend):
    async with (
        serving(create_app(backend, HttpConfig(api_key="k"))) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client


async def test_chat(sdk):
    answer = await sdk.chat.completions.create(model="org/fake", messages=MESSAGES, n=2, max_completion_tokens=20)
    assert [choice.message.content for choice in answer.choices] == ["Hello, wörld!"] * 2
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer._request_id


async def test_chat_stream(sdk):
    options = {"include_usage": True}
    stream = await sdk.chat.completions.create(model="org/fake", messages=MESSAGES, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, wörld!"
    assert chunks[-1].usage.completion_tokens == 6
    assert chunks[0].choices[0].delta.role == "assistant"


async def test_the_streaming_helper(sdk):
    async with sdk.chat.completions.stream(model="org/fake", messages=MESSAGES) as stream:
        events = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello, wörld!"
    assert "content.done" in events


async def test_a_conversation_goes_on_with_an_answer(sdk, backend):
    answer = await sdk.chat.completions.create(model="org/fake", messages=MESSAGES)
    messages = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "?"}]
    await sdk.chat.completions.create(model="org/fake", messages=messages)
    assert [turn["content"] for turn in backend.conversations[-1]] == ["Hi", "Hello, wörld!", "?"]


async def test_completions(sdk):
    answer = await sdk.completions.create(model="org/fake", prompt=[[72], [105]], n=2, echo=True, max_tokens=1)
    assert [choice.text for choice in answer.choices] == ["HHel", "HHel", "iHel", "iHel"]
    stream = await sdk.completions.create(model="org/fake", prompt="Hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, wörld!"


async def test_models(sdk):
    assert [model.id async for model in sdk.models.list()] == ["org/fake"]
    assert (await sdk.models.retrieve("org/fake")).id == "org/fake"


async def test_c12_what_the_sdk_can_send_without_effect(sdk):
    answer = await sdk.chat.completions.create(
        model="org/fake", messages=MESSAGES, store=False, metadata={"a": "b"}, service_tier="auto", user="u",
        parallel_tool_calls=True, reasoning_effort="low", stream_options=None, logprobs=False, seed=1,
        extra_body={"top_k": 1, "min_p": 0.0, "ignore_eos": False},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"


async def test_fifty_at_once(sdk, backend):
    backend.words = lambda one: [bytes(one.prompt_ids[1:]).decode(), "!"]
    calls = [sdk.completions.create(model="org/fake", prompt=f"p{i}") for i in range(50)]
    answers = await asyncio.gather(*calls)
    assert [answer.choices[0].text for answer in answers] == [f"p{i}!" for i in range(50)]


async def test_errors_are_the_sdks_classes(sdk, backend):
    with pytest.raises(openai.NotFoundError) as not_found:
        await sdk.chat.completions.create(model="unknown", messages=MESSAGES)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.chat.completions.create(model="org/fake", messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        await sdk.with_options(api_key="wrong").models.list()
    for error, kind in ((Overloaded("full"), openai.RateLimitError), (Unavailable("gone"), openai.InternalServerError)):
        backend.refusal = error
        with pytest.raises(kind):
            await sdk.completions.create(model="org/fake", prompt="Hi")


async def test_b15_an_error_in_mid_stream_raises_with_its_message(sdk, backend):
    backend.fail_at = (2, Interrupted("engine-0 died"))
    stream = await sdk.chat.completions.create(model="org/fake", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="engine-0 died"):
        async for _ in stream:
            pass


async def test_c23_the_sdk_waits_as_long_as_it_is_told(sdk, backend):
    """Its own pause before a first retry is half a second at most; ours is a second."""
    arrivals, submit = [], backend.submit

    def submit_unless_first(*arguments):
        arrivals.append(time.monotonic())
        if len(arrivals) == 1:
            raise Overloaded("full")
        return submit(*arguments)

    backend.submit = submit_unless_first
    answer = await sdk.with_options(max_retries=1).completions.create(model="org/fake", prompt="Hi")
    assert answer.choices[0].text == "Hello, wörld!"
    first, second = arrivals
    assert second - first > 0.9


@pytest.mark.parametrize("stream", [False, True])
async def test_c23_a_retry_after_a_timeout_leaves_no_first_attempt(sdk, backend, stream):
    backend.hold = {0}
    with pytest.raises(openai.APITimeoutError):
        await sdk.with_options(max_retries=1, timeout=0.2).completions.create(
            model="org/fake", prompt="Hi", stream=stream
        )
    assert len(backend.generations) == 2
    for generation in backend.generations:
        await asyncio.wait_for(generation.aborted.wait(), 1)


async def test_b19_a_closed_stream_ends_its_generation(sdk, backend):
    backend.hold = {3}
    stream = await sdk.completions.create(model="org/fake", prompt="Hi", stream=True)
    await anext(aiter(stream))
    await stream.close()
    await asyncio.wait_for(backend.generations[0].aborted.wait(), 1)
