"""The comparison finds what differs, and only that."""

import copy

import pytest
from chaos_streams import COUNT, SORTS, Stream, difference, requests


def answer():
    scores = [["a", -0.5, {"a": -0.5}, 0], ["b", -0.25, {"b": -0.25}, 1]]
    return {
        "usage": [3, 2, 5],
        "choices": {n: {"text": "ab", "ids": [97, 98], "finish": "length", "scores": scores} for n in (0, 1)},
    }


def test_equal_answers_do_not_differ():
    assert difference(answer(), answer()) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", "aB"), ("text", "a"), ("ids", [97, 98, 98]), ("ids", [97]), ("finish", "stop"), ("finish", None),
        ("scores", [["a", -0.5, {"a": -0.5}, 0], ["b", -0.2500001, {"b": -0.25}, 1]]), ("scores", []),
    ],
)  # fmt: skip
def test_anything_else_is_a_difference(name, value):
    other = copy.deepcopy(answer())
    other["choices"][1][name] = value
    assert f"choice 1: {name} differ" in difference(answer(), other)


def test_usage_counts():
    assert "usage" in difference(answer(), answer() | {"usage": [3, 3, 6]})


def test_there_are_requests_of_every_sort():
    asked = requests()
    assert len(asked) == COUNT
    assert {(one.how, one.path) for one in asked} == {(how, path) for how, path, _ in SORTS}
    assert {one.choices for one in asked} == {1, 2}


def test_a_stream_without_all_of_its_choices_is_broken():
    stream = Stream(requests()[1])
    stream.usage, stream.choices = [1, 1, 2], {0: {"finish": "length"}}
    assert not stream._is_whole()
    stream.choices[1] = {"finish": None}
    assert not stream._is_whole()
    stream.choices[1] = {"finish": "stop"}
    assert stream._is_whole()
