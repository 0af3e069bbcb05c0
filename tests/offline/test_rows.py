"""What a line may hold, and how bad ones are named."""

import json

import pytest

from actorlm.errors import BadRequest
from actorlm.offline.rows import Defaults, check_rows, parse, read_lines


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        path = tmp_path / "in.jsonl"
        path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
        return path

    return write


def test_ids_of_good_rows(written):
    path = written({"prompt": "a", "id": "x"}, b"  ", {"messages": [], "custom_id": 5}, {"prompt_token_ids": [1]}, b"")
    assert check_rows(path) == ["x", 5, None]
    assert [number for number, _ in read_lines(path)] == [1, 3, 4]


def test_parameters_and_their_defaults():
    defaults = Defaults(max_tokens=5, temperature=0.5)
    said = parse(1, b'{"prompt": "a", "max_tokens": 9, "temperature": 0, "stop": "x", "n": 2, "seed": 3}')
    params = said.params(defaults)
    assert (params.max_tokens, params.temperature, params.stop, params.n, params.seed) == (9, 0, "x", 2, 3)
    unsaid = parse(1, b'{"prompt": "a", "temperature": null}').params(defaults)
    assert (unsaid.max_tokens, unsaid.temperature, unsaid.stop) == (5, 0.5, None)
    assert parse(1, b'{"prompt": "a", "max_tokens": null}').params(defaults).max_tokens is None


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"{", "line 1: Input data was truncated"),
        (b"[]", "line 1: Expected `object`"),
        (b"nonsense", "line 1: .*malformed"),
        (b'{"prompt": "a", "temprature": 1}', "line 1: .*unknown field `temprature`"),
        (b'{"prompt": "a", "temperature": 3}', "line 1: temperature is 3: .*<= 2"),
        (b'{"prompt": 5}', "line 1: prompt is 5: "),
        (b'{"prompt_token_ids": [1, "a"]}', r"line 1: prompt_token_ids\[1\] is \"a\": "),
        (b'{"messages": [{"role": "nobody"}]}', r"line 1: .*nobody"),
        (b"{}", "line 1: it needs one of prompt, prompt_token_ids, messages"),
        (b'{"prompt": "a", "messages": []}', "line 1: it needs one of"),
        (b'{"prompt": "a", "id": 1, "custom_id": 1}', "line 1: id and custom_id are the same thing"),
        (b'{"prompt": "a", "id": 1.5}', "line 1: .*id"),
        (b"[" * 100_000, "line 1: "),
        (b'"\xff"', "line 1: "),
    ],
    ids=range(14),
)
def test_a_bad_line_is_named(written, line, named):
    with pytest.raises(BadRequest, match=f"in.jsonl: {named}.*Nothing was run"):
        check_rows(written(line))


def test_all_bad_lines_are_named_up_to_ten(written):
    with pytest.raises(BadRequest) as caught:
        check_rows(written({"prompt": "a"}, *[{} for _ in range(13)]))
    assert "line 2: " in caught.value.message
    assert "line 11: " in caught.value.message
    assert "line 12: " not in caught.value.message
    assert "and 3 more" in caught.value.message


def test_an_id_is_given_once(written):
    with pytest.raises(BadRequest, match="line 3: its id 'x' is that of line 1, too"):
        check_rows(written({"prompt": "a", "id": "x"}, {"prompt": "a", "id": 1}, {"prompt": "b", "custom_id": "x"}))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadRequest, match="nothing.jsonl: No such file"):
        check_rows(tmp_path / "nothing.jsonl")
