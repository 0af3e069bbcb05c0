"""Log-probabilities as a client sees them: OpenAI's two formats, whole and streamed, echo, partial characters."""

import msgspec
import pytest
from fake_backend import BOS, chat, text
from test_api_stream import parsed

from actorlm.api.schema_chat import ChatCompletion, ChatCompletionChunk
from actorlm.api.schema_completions import Completion
from actorlm.logprobs import Scores

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OUTPUT = [*"aé".encode(), 0xFF, BOS, *"👩b".encode()]
"""One token a byte: characters in pieces, a byte that is none, a special token."""
TEXTS = ["a", "", "é", "�", "", "", "", "", "👩", "b"]


def add(entries, token, count):
    """`count` others; the first of them has the bytes of `token`, as two tokens may."""
    others = [token, 90, 0xC3][:count]
    entries.append(count + 1, [token, *others], [-0.5 - token / 256, *(-1.0 * rank for rank, _ in enumerate(others))])


def scores(submission, step):
    """What a submission asks for."""
    sampling, made = submission.sampling, Scores()
    if sampling.prompt_logprobs is not None and step == 0:
        for token in submission.prompt_ids[1:]:
            add(made.prompt, token, sampling.prompt_logprobs)
    if sampling.logprobs is not None:
        add(made.output, OUTPUT[step], sampling.logprobs + len(sampling.logprob_token_ids))
    return made or None


@pytest.fixture(autouse=True)
def scoring(backend):
    backend.words = lambda _: TEXTS
    backend.scores = scores


async def whole(client, path, body):
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=ChatCompletion if path == CHAT else Completion)
    return answer.json()


async def pieces(client, path, body):
    """The choices of all events, by index."""
    kind, choices = ChatCompletionChunk if path == CHAT else Completion, {}
    for event in parsed((await client.post(path, json=body | {"stream": True})).text):
        msgspec.convert(event, kind)
        for choice in event["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    return choices


async def test_chat(client):
    answer = await whole(client, CHAT, chat(logprobs=True, top_logprobs=2))
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    content = logprobs["content"]
    assert [one["bytes"] for one in content] == [[token] if token != BOS else list(b"<s>") for token in OUTPUT]
    assert [one["token"] for one in content[:5]] == ["a", "\\xc3", "\\xa9", "\\xff", "<s>"]
    assert [one["logprob"] for one in content] == [-0.5 - token / 256 for token in OUTPUT]
    assert content[0]["top_logprobs"] == [
        {"token": "a", "logprob": 0.0, "bytes": [97]}, {"token": "Z", "logprob": -1.0, "bytes": [90]},
    ]  # fmt: skip
    assert (
        b"".join(bytes(one["bytes"]) for one in content if one["token"] != "<s>").decode(errors="replace")
        == (answer["choices"][0]["message"]["content"])
    )
    assert answer["usage"]["completion_tokens"] == len(content)


async def test_chat_without_top_logprobs_lists_none(client):
    answer = await whole(client, CHAT, chat(logprobs=True))
    assert [one["top_logprobs"] for one in answer["choices"][0]["logprobs"]["content"]] == [[]] * len(OUTPUT)


async def test_token_ids_are_listed_beside_the_best(client, backend):
    answer = await whole(client, CHAT, chat(logprobs=True, top_logprobs=1, logprob_token_ids=[90]))
    assert [one["token"] for one in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]] == ["a", "Z"]
    assert backend.submissions[0].sampling.logprob_token_ids == (90,)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_chat_stream_has_the_same(client, n):
    body = chat(logprobs=True, top_logprobs=2, n=n)
    answer, choices = await whole(client, CHAT, body), await pieces(client, CHAT, body)
    for choice in answer["choices"]:
        events = choices[choice["index"]]
        logprobs = [event["logprobs"] for event in events if event["logprobs"] is not None]
        assert [one for part in logprobs for one in part["content"]] == choice["logprobs"]["content"]
        assert "".join(event["delta"].get("content", "") for event in events) == choice["message"]["content"]


async def test_completions(client):
    answer = await whole(client, COMPLETIONS, text(logprobs=2))
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:5] == ["a", "bytes:\\xc3", "bytes:\\xa9", "bytes:\\xff", "<s>"]
    assert logprobs["token_logprobs"] == [-0.5 - token / 256 for token in OUTPUT]
    assert logprobs["top_logprobs"][0] == {"a": -0.5 - 97 / 256, "Z": -1.0}
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3, 3, 3, 3, 3, 4]
    assert choice["text"] == "aé�👩b"
    shown = (await whole(client, COMPLETIONS, text(logprobs=0, skip_special_tokens=False)))["choices"][0]["logprobs"]
    assert shown["text_offset"] == [0, 1, 1, 2, 3, 6, 6, 6, 6, 7]
    assert shown["top_logprobs"][0] == {"a": -0.5 - 97 / 256}


@pytest.mark.parametrize(
    "fields", [{}, {"echo": True}, {"echo": True, "max_tokens": 0}, {"echo": True, "max_tokens": 1}]
)
@pytest.mark.parametrize("prompt", ["é!", [[33, *"é".encode()], [65]], [65]])
async def test_a_completion_stream_has_the_same(client, fields, prompt):
    body = text(logprobs=1, n=2, prompt=prompt, **fields)
    answer, choices = await whole(client, COMPLETIONS, body), await pieces(client, COMPLETIONS, body)
    assert len(choices) == len(answer["choices"])
    for choice in answer["choices"]:
        events = choices[choice["index"]]
        logprobs = [event["logprobs"] for event in events if event["logprobs"] is not None]
        for name, values in choice["logprobs"].items():
            assert [one for part in logprobs for one in part[name]] == values
        assert "".join(event["text"] for event in events) == choice["text"]
        assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["text_offset"])


@pytest.mark.parametrize("length", [0, 1, 3])
async def test_c02_an_echo_has_the_prompts_first(client, length):
    answer = await whole(client, COMPLETIONS, text(prompt="Yé", echo=True, logprobs=1, max_tokens=length))
    (choice,) = answer["choices"]
    logprobs, prompt = choice["logprobs"], [BOS, *"Yé".encode()]
    assert choice["text"] == "Yé" + "".join(TEXTS[:length])
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == length
    assert len(logprobs["tokens"]) == len(prompt) + length
    assert logprobs["tokens"][:2] == ["<s>", "Y"]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == [-0.5 - token / 256 for token in [*prompt[1:], *OUTPUT[:length]]]
    assert logprobs["text_offset"] == [0, 0, 1, 1, 2, 3, 3][: 4 + length]


async def test_c02_a_prompt_of_one_token_has_nothing_known(client):
    answer = await whole(client, COMPLETIONS, text(prompt=[65], echo=True, logprobs=1, max_tokens=0))
    expected = {"text_offset": [0], "token_logprobs": [None], "tokens": ["A"], "top_logprobs": [None]}
    assert answer["choices"][0]["logprobs"] == expected


async def test_without_logprobs_there_are_none(client):
    assert (await whole(client, CHAT, chat()))["choices"][0]["logprobs"] is None
    answer = await whole(client, COMPLETIONS, text(echo=True))
    assert answer["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat(top_logprobs=2), "top_logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
        (CHAT, chat(logprobs=3), "logprobs"),
        (CHAT, chat(logprob_token_ids=[1]), "logprob_token_ids"),
        (CHAT, chat(logprobs=True, logprob_token_ids=[1] * 129), "logprob_token_ids"),
        (COMPLETIONS, text(logprobs=21), "logprobs"),
        (COMPLETIONS, text(logprobs=-1), "logprobs"),
        (COMPLETIONS, text(logprobs=True), "logprobs"),
        (COMPLETIONS, text(logprob_token_ids=[1]), "logprob_token_ids"),
        (COMPLETIONS, text(logprobs=1, logprob_token_ids=[257]), "logprob_token_ids"),
    ],
)
async def test_c04_what_cannot_be_asked_for(client, backend, path, body, param):
    answer = await client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not backend.generations
