"""Answers to one request in both modes, brought to one shape. Reading a stream checks what holds for every stream."""

import json
from typing import NamedTuple

from exchange import Exchange, body_of
from tree import StreamError


class Answer(NamedTuple):
    """The texts and the finish reasons by choice, and the usage without what the prefix cache did."""

    texts: list
    reasons: list
    usage: dict


def text_of(choice):
    """The text of a choice of any kind of body or event; None where it brings none."""
    if "text" in choice:
        return choice["text"]
    return choice.get("message", choice.get("delta")).get("content")


def counts(usage):
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def whole(tree, path, **fields):
    """The answer in one body."""
    exchange = Exchange(tree, path, body_of(tree, path, **fields))
    assert exchange.response.status == 200, exchange.response.read()
    body = exchange.json()
    exchange.close()
    choices = body["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return Answer([text_of(one) for one in choices], [one["finish_reason"] for one in choices], counts(body["usage"]))


def parsed(raw_events):
    """Raw events as JSON; asserts their form, and that the last one is [DONE]."""
    events = []
    for raw in raw_events:
        assert raw.startswith(b"data: "), raw
        assert raw.endswith(b"\n\n"), raw
        data = raw.removeprefix(b"data: ").removesuffix(b"\n\n")
        assert len(data.decode().splitlines()) == 1, data
        events.append(data)
    assert events.pop() == b"[DONE]"
    return [json.loads(event) for event in events]


def events(tree, path, **fields):
    """The events of a stream. Raises StreamError if it carries an error."""
    exchange = Exchange(tree, path, body_of(tree, path, stream=True, **fields))
    assert exchange.response.status == 200, exchange.response.read()
    found = parsed(exchange.raw_events())
    exchange.close()
    if "error" in found[-1]:
        raise StreamError(found[-1]["error"])
    return found


def joined(found):
    """Events as an Answer. Each choice ends exactly once, and says nothing after that (b10)."""
    assert {(event["id"], event["created"], event["model"], event["object"]) for event in found} == {
        (found[0]["id"], found[0]["created"], found[0]["model"], found[0]["object"])
    }
    texts, reasons, usage = {}, {}, None
    for event in found:
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in reasons, f"choice {index} goes on after its end"
            texts.setdefault(index, []).append(text_of(choice) or "")
            if choice["finish_reason"] is not None:
                reasons[index] = choice["finish_reason"]
        usage = event.get("usage") or usage
    assert sorted(texts) == sorted(reasons) == list(range(len(texts)))
    return Answer(
        ["".join(texts[index]) for index in sorted(texts)], [reasons[index] for index in sorted(texts)], usage
    )


def streamed(tree, path, **fields):
    """The answer in pieces, joined."""
    answer = joined(events(tree, path, **fields, stream_options={"include_usage": True}))
    return answer._replace(usage=counts(answer.usage))


def both_ways(tree, path, **fields):
    """The answer, which is the same in both modes."""
    answer = whole(tree, path, **fields)
    assert streamed(tree, path, **fields) == answer
    return answer
