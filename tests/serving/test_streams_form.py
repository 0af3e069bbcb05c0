"""The form of streams of whole trees: how they end, what they bill, what is refused before they begin."""

import json
import time
from functools import partial

import null_model
import openai
import pytest
from answers import both_ways, counts, events, joined, parsed, text_of, whole
from exchange import PATHS, Exchange, body_of
from idle_proxy import proxied
from null_model import MESSAGE_END, bias
from tree import PATIENCE, in_parallel, until

pytestmark = [pytest.mark.serving]

COMPLETIONS, CHAT = PATHS
CONTEXT = 128


@pytest.fixture(scope="module")
def short_tree(tree_of):
    """A short context, and a cache that holds less than that."""
    return tree_of("--model-impl", "null", "--max-model-len", CONTEXT, "--kv-cache-tokens", 96)


# How a choice ends.

ENDINGS = {
    "end token": ({"logit_bias": bias([MESSAGE_END])}, "stop"),
    "stop string": ({"logit_bias": bias(b"A"), "stop": "AAAA"}, "stop"),
    "stop string at once": ({"logit_bias": bias(b"A"), "stop": "A"}, "stop"),
    "stop token": ({"logit_bias": bias(b"A"), "stop_token_ids": [65]}, "stop"),
    "stop token after others": ({"logit_bias": bias(b"AB"), "stop_token_ids": [65], "min_tokens": 4}, "stop"),
    "length": ({"logit_bias": bias(b"A"), "max_tokens": 7}, "length"),
    "length of one": ({"logit_bias": bias(b"A"), "max_tokens": 1}, "length"),
    "length with a held beginning of a stop string": ({"logit_bias": bias(b"A"), "stop": "AAAAAAAAAAAAAB"}, "length"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("n", [1, 3])
def test_b10_every_ending_has_one_reason(null_tree, path, ending, n):
    """`joined` holds every stream to exactly one reason a choice, in its last event, with null in all before."""
    fields, reason = ENDINGS[ending]
    answer = both_ways(null_tree, path, **{"max_tokens": 12, "seed": 1, "n": n} | fields)
    assert answer.reasons == [reason] * n


def test_b10_the_context_is_full(short_tree):
    """A sequence ends with the cache, which here is shorter than the context: one token more than it holds."""
    answer = both_ways(short_tree, COMPLETIONS, prompt=[65] * 60, max_tokens=4000, logit_bias=bias(b"A"))
    assert answer.reasons == ["length"]
    assert answer.usage["completion_tokens"] == 96 + 1 - 60
    chat = both_ways(short_tree, CHAT, logit_bias=bias(b"A"))
    assert chat.reasons == ["length"]
    assert chat.usage["total_tokens"] == 96 + 1


@pytest.mark.parametrize("path", PATHS)
def test_b10_a_sequence_as_long_as_the_context_is_full(tree_of, path):
    tree = tree_of("--model-impl", "null", "--max-model-len", CONTEXT)
    answer = both_ways(tree, path, prompt="x" * 60, n=2, max_tokens=4000, logit_bias=bias(b"A"))
    assert answer.reasons == ["length"] * 2
    assert answer.texts == ["A" * (CONTEXT - answer.usage["prompt_tokens"])] * 2


def test_b10_choices_of_one_request_end_differently(null_tree):
    """Three choices, three endings, each at its own time."""

    def ends(seed):
        return [null_model.generated([1], 60, seed=seed, choice=choice) for choice in range(3)]

    def is_mixed(ids):
        stopped = [one[-1] in null_model.ENDS for one in ids]
        return stopped == [True, False, False] and 65 in ids[1] and 65 not in ids[0] + ids[2]

    seed = next(seed for seed in range(100_000) if is_mixed(ends(seed)))
    first, second, third = ends(seed)
    answer = both_ways(null_tree, COMPLETIONS, prompt=[1], seed=seed, n=3, max_tokens=60, stop_token_ids=[65])
    cut = second.index(65)
    assert answer.reasons == ["stop", "stop", "length"]
    assert answer.texts == [null_model.decoded(ids) for ids in (first[:-1], second[:cut], third)]
    assert answer.usage["completion_tokens"] == len(first) + cut + 1 + 60


def test_b10_an_echo_alone_ends_too(null_tree):
    answer = both_ways(null_tree, COMPLETIONS, prompt=["one", "two"], n=2, echo=True, max_tokens=0)
    assert answer.texts == ["one", "one", "two", "two"]
    assert answer.reasons == ["length"] * 4
    assert answer.usage["completion_tokens"] == 0


# What is billed.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_obfuscation": True}], ids=str)
def test_b14_usage_is_not_told_unasked(null_tree, path, options):
    fields = {} if options is None else {"stream_options": options}
    for event in events(null_tree, path, max_tokens=3, **fields):
        assert "usage" not in event
        assert event["choices"]


@pytest.mark.parametrize("path", PATHS)
def test_b14_usage_is_one_last_event(null_tree, path):
    *others, last = events(null_tree, path, max_tokens=3, n=2, ignore_eos=True, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    assert others
    for event in others:
        assert event["usage"] is None
        assert event["choices"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"stream": None}], ids=str)
@pytest.mark.parametrize("include", [True, False])
def test_b14_options_of_a_stream_without_one(null_tree, path, fields, include):
    body = body_of(null_tree, path, **fields, stream_options={"include_usage": include})
    response = null_tree.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": bias([0xE6]), "max_tokens": 5},
        {"logit_bias": bias(b"A"), "stop": "AAA"},
        {"n": 2, "seed": 3, "max_tokens": 9},
        {"prompt": "日本 👩‍🚀", "seed": 3, "max_tokens": 4},
    ],
    ids=["incomplete character", "stop", "n 2", "multi-byte prompt"],
)
def test_b14_both_modes_bill_alike(null_tree, path, fields):
    usage = both_ways(null_tree, path, **fields).usage
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_b14_prompts_count_once_and_echoes_not_at_all(null_tree):
    fields = {"prompt": ["a", "bcd"], "n": 3, "echo": True, "max_tokens": 2, "ignore_eos": True, "seed": 1}
    usage = both_ways(null_tree, COMPLETIONS, **fields).usage
    assert usage == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}


def test_b14_cached_prompt_tokens(null_tree):
    """Both modes tell what the prefix cache spared: all whole blocks but the last token's."""
    prompt = [7, 7, 7] * 30
    null_tree.complete(prompt, max_tokens=1)
    whole_usage = null_tree.complete(prompt, max_tokens=2)["usage"]
    stream = {"prompt": prompt, "max_tokens": 2, "stream_options": {"include_usage": True}}
    stream_usage = joined(events(null_tree, COMPLETIONS, **stream)).usage
    assert whole_usage == stream_usage
    assert whole_usage["prompt_tokens_details"] == {"cached_tokens": 80}
    assert counts(whole_usage) == {"prompt_tokens": 90, "completion_tokens": 2, "total_tokens": 92}


# What is refused before a stream begins.

TOOL = {"type": "function", "function": {"name": "f"}}
REFUSED = {
    "unknown model": (PATHS, {"model": "nobody"}, 404, "model"),
    "temperature": (PATHS, {"temperature": 3}, 400, "temperature"),
    "unknown field": (PATHS, {"colour": "red"}, 400, "colour"),
    "wrong type": (PATHS, {"max_tokens": "5"}, 400, "max_tokens"),
    "too many choices": (PATHS, {"n": 100_000}, 400, "n"),
    "empty stop": (PATHS, {"stop": ""}, 400, "stop"),
    "stop token out of the vocabulary": (PATHS, {"stop_token_ids": [259]}, 400, "stop_token_ids"),
    "biased token out of the vocabulary": (PATHS, {"logit_bias": {"259": 1}}, 400, "logit_bias"),
    "long text": (PATHS, {"prompt": "x" * CONTEXT}, 400, None),
    "very long text": (PATHS, {"prompt": "x" * 1_000_000}, 400, None),
    "longer than the cache": (PATHS, {"prompt": "x" * 97}, 400, None),
    "prompt out of the vocabulary": ([COMPLETIONS], {"prompt": [1, 259]}, 400, "prompt"),
    "negative id": ([COMPLETIONS], {"prompt": [-1]}, 400, "prompt"),
    "empty prompt": ([COMPLETIONS], {"prompt": ""}, 400, "prompt"),
    "one empty prompt of two": ([COMPLETIONS], {"prompt": ["a", ""]}, 400, "prompt"),
    "one long prompt of two": ([COMPLETIONS], {"prompt": ["a", "x" * 97]}, 400, "prompt"),
    "no length": ([COMPLETIONS], {"max_tokens": 0}, 400, "max_tokens"),
    "tool_choice of no tool": ([CHAT], {"tool_choice": "required"}, 400, "tool_choice"),
    "tool_choice of a missing tool": (
        [CHAT], {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400, "tool_choice"
    ),
    "tool_choice of no kind": ([CHAT], {"tool_choice": "sometimes"}, 400, "tool_choice"),
    "invalid schema": (
        [CHAT], {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
        400, "response_format",
    ),
    "no messages": ([CHAT], {"messages": []}, 400, "messages"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "name"), [(path, name) for name, case in REFUSED.items() for path in case[0]])
def test_b16_a_bad_request_gets_no_stream(short_tree, path, name):
    _, fields, status, param = REFUSED[name]
    body = {**body_of(short_tree, path, prompt=fields.get("prompt", "Hi")), "stream": True}
    body |= {field: value for field, value in fields.items() if field != "prompt"}
    exchange = Exchange(short_tree, path, body)
    assert exchange.response.status == status
    assert exchange.response.getheader("content-type") == "application/json"
    error = exchange.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert error["param"].split(".")[0].split("[")[0] == param
    exchange.close()


def test_b16_refused_by_the_engine_leaves_nothing(short_tree):
    """One prompt of a request is too long for the cache: the other one does not go on."""
    body = body_of(short_tree, COMPLETIONS, prompt=["a", "x" * 97], max_tokens=80, n=4, stream=True)
    assert short_tree.post(COMPLETIONS, body).status_code == 400
    short_tree.settled()


# The wire.


@pytest.mark.parametrize("path", PATHS)
def test_b26_the_form_on_the_wire(null_tree, path):
    exchange = Exchange(null_tree, path, body_of(null_tree, path, stream=True, max_tokens=5, logit_bias=bias(b"A")))
    head = exchange.response
    assert head.status == 200
    assert head.getheader("content-type").split(";")[0] == "text/event-stream"
    assert head.getheader("cache-control") == "no-cache"
    assert head.getheader("x-accel-buffering") == "no"
    raw = list(exchange.raw_events())
    assert raw[-1] == b"data: [DONE]\n\n"
    found = parsed(raw)
    assert joined(found).texts == ["AAAAA"]
    first = found[0]["choices"][0]
    if path == CHAT:
        assert first["delta"]["role"] == "assistant"
        assert [event["object"] for event in found] == ["chat.completion.chunk"] * len(found)
        assert all("role" not in event["choices"][0]["delta"] for event in found[1:])
    else:
        assert [event["object"] for event in found] == ["text_completion"] * len(found)
    assert abs(found[0]["created"] - time.time()) < 60
    exchange.close()


def test_b26_each_choice_begins_with_the_role(null_tree):
    found = events(null_tree, CHAT, n=5, max_tokens=4)
    begun = {}
    for choice in (event["choices"][0] for event in found):
        begun.setdefault(choice["index"], choice["delta"].get("role"))
    assert begun == dict.fromkeys(range(5), "assistant")


def test_b26_line_separators_in_text_stay_in_one_line(null_tree):
    """Some readers take U+0085, U+2028 and U+2029 for ends of lines; events hold them escaped (see `parsed`)."""
    for character in ("\x85", "\u2028", "\u2029", "\n", "\r", "\x1e"):
        last = character.encode()[-1]
        prompt = [*b"x", *character.encode()[:-1]]
        answer = both_ways(null_tree, COMPLETIONS, prompt=prompt, max_tokens=1, logit_bias=bias([last]))
        assert answer.texts == [character]


@pytest.mark.parametrize("path", PATHS)
def test_b26_one_flush_a_token(slow_null_tree, path):
    """Tokens arrive one by one over the whole time of the steps, not in one lump at the end."""
    tokens = 20
    body = body_of(slow_null_tree, path, stream=True, max_tokens=tokens, logit_bias=bias(b"A"))
    exchange = Exchange(slow_null_tree, path, body)
    arrivals = []
    for raw in exchange.raw_events():
        event = {} if b"[DONE]" in raw else json.loads(raw.removeprefix(b"data: "))
        if event.get("choices") and text_of(event["choices"][0]):
            arrivals.append(time.monotonic())
    exchange.close()
    assert len(arrivals) > tokens / 2
    assert arrivals[-1] - arrivals[0] > 0.02 * tokens / 2


def test_b26_a_stream_of_one_request_differs_from_that_of_another(null_tree):
    ids = {events(null_tree, path, max_tokens=2)[0]["id"] for path in PATHS for _ in range(20)}
    assert len(ids) == 40
    assert whole(null_tree, CHAT, max_tokens=2).reasons


# While there is nothing to say.


def test_b25_a_stream_that_waits_is_kept_alive(start):
    """The first step takes two seconds: a proxy that waits for one would have ended it."""
    tree = start("--model-impl", "null", "--null-step-ms", "2000", "--stream-keep-alive-s", "0.2")
    body = {"model": tree.model, "prompt": "x", "max_tokens": 1, "stream": True}
    with tree.client.stream("POST", COMPLETIONS, json=body, timeout=1) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines.count(": keep-alive") >= 3
    assert lines[0] == ": keep-alive"
    assert lines[-1] == "data: [DONE]"


def test_b25_a_long_prefill_through_a_proxy_that_closes_what_is_silent(start):
    """A prompt of 4000 tokens takes 250 steps, five seconds, of which the proxy allows two; the SDK is the client."""
    options = ("--model-impl", "null", "--null-step-ms", "20", "--max-num-batched-tokens", "16")
    silent, kept = start(*options, ready=False), start(*options, "--stream-keep-alive-s", "0.2", ready=False)

    def ask(tree):
        asked = {"model": tree.model, "prompt": "x" * 4000, "max_tokens": 2, "logit_bias": bias(b"A")}
        with (
            proxied(tree.port, idle_s=2) as port,
            openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
        ):
            return "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True))

    cut, answer = in_parallel([partial(ask, tree.wait_ready()) for tree in (silent, kept)])
    assert isinstance(cut, openai.APIConnectionError)
    assert answer == "AA"
    aborted = ("request_success_total", (("finished_reason", "abort"),))
    until(lambda: silent.metrics().get(aborted) == 1, 5)


def test_b25_a_stream_that_is_queued_is_kept_alive(start):
    """Another one has the only seat for four steps of a second; the SDK as client, which waits for half of one."""
    options = ("--null-step-ms", "1000", "--max-num-seqs", "1", "--stream-keep-alive-s", "0.1")
    tree = start("--model-impl", "null", *options)
    seated = Exchange(tree, COMPLETIONS, body_of(tree, COMPLETIONS, max_tokens=4, ignore_eos=True))
    until(lambda: tree.total("num_requests_running") == 1, 5)
    forced = {"model": tree.model, "prompt": "x", "max_tokens": 2, "logit_bias": bias(b"A")}
    with openai.OpenAI(base_url=f"{tree.url}/v1", api_key="none", max_retries=0, timeout=0.5 * PATIENCE) as client:
        stream = client.completions.create(**forced, stream=True)
        until(lambda: tree.total("num_requests_waiting") == 1, 1)
        assert "".join(chunk.choices[0].text for chunk in stream) == "AA"
    seated.close()
