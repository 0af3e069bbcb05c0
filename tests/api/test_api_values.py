"""Bodies of countless values: refused by counting, before anything is decoded."""

import json

import pytest

from actorlm.api.body import MAX_OTHERS, MAX_VALUES, check_values, decode
from actorlm.api.schema_completions import CompletionRequest
from actorlm.errors import BadRequest


def body(values):
    return b'{"model":"m","prompt":[' + b",".join(values) + b"]}"


@pytest.mark.parametrize("value", [b"[]", b"{}", b"[1]", b'""', b'"x"', b'["a,b"]'])
def test_e10_too_many_texts_lists_and_objects(value):
    check_values(body([value] * (MAX_OTHERS // 2 - 10)))
    with pytest.raises(BadRequest, match="send several requests"):
        check_values(body([value] * (MAX_OTHERS + 1)))


@pytest.mark.parametrize("value", [b"1", b"null", b"-1.5e3"])
def test_e10_too_many_numbers(value):
    check_values(body([value] * MAX_VALUES))
    with pytest.raises(BadRequest, match="send several requests"):
        check_values(body([value] * (MAX_VALUES + 2)))


@pytest.mark.parametrize(
    "text", ["[" * 10**6, "{" * 10**6, "," * 3 * 10**6, '"' * 10**6, "\\" * 10**6, '\\",[' * 10**6, 'a"[,' * 10**6]
)
def test_c22_characters_of_a_text_are_no_values(text):
    content = json.dumps({"model": "m", "prompt": text}).encode()
    check_values(content)
    assert decode(content, CompletionRequest).prompt == text


@pytest.mark.parametrize(
    "content", [b'"' * 10**6, b'"\\' * 10**6, b'"' + b'\\"' * 10**6, b"\\" * 10**6, b'"' + b"\\" * 10**6 + b"[" * 10**6]
)
@pytest.mark.timeout(60)  # what is quadratic takes hours
def test_e09_texts_without_end_take_no_time(content):
    with pytest.raises(BadRequest):
        decode(content, CompletionRequest)
