"""Errors of msgspec in words: which field, what it holds, what is wrong with it."""

from typing import Annotated

import msgspec
import pytest

from actorlm.invalid import fault


class Part(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    sizes: list[int] = []


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part]
    heat: Annotated[float, msgspec.Meta(le=2)] = 1.0
    bias: dict[int, float] = {}


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"parts": [], "heat": 9}, "heat", "heat is 9: Expected `float` <= 2.0"),
        ({"parts": [{"kind": "a"}, {"kind": 5}]}, "parts[1].kind", "parts[1].kind is 5: Expected `str`, got `int`"),
        (
            {"parts": [{"kind": "a", "sizes": [1, None]}]},
            "parts[0].sizes[1]",
            "parts[0].sizes[1] is null: Expected `int`, got `null`",
        ),
        ({"parts": 7}, "parts", "parts is 7: Expected `array`, got `int`"),
        ({"parts": [], "bias": {"5": "much"}}, "bias", "bias: Expected `float`, got `str`"),
        ({"parts": [], "bias": {"x": 1}}, "bias", "bias: Expected `int`, got `str`"),
        ({"parts": [], "het": 1}, "het", "het: Object contains unknown field `het`"),
        ({"parts": [{}]}, "parts[0].kind", "parts[0].kind: Object missing required field `kind`"),
        ([], "", "Expected `object`, got `array`"),
    ],
)
def test_the_message(body, path, message):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(body, Whole, strict=False) if "bias" in body else msgspec.convert(body, Whole)
    found = fault(caught.value, body)
    assert (found.path, found.message) == (path, message)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("x" * 1000, '"' + "x" * 56 + "..."), ({"a": 1}, "an object of 1"), ([1], "an array of 1")],
)
def test_what_is_shown_of_a_value(value, shown):
    """Never more than a line, and the size alone of lists and objects."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"parts": [], "heat": value}, Whole)
    found = fault(caught.value, {"parts": [], "heat": value})
    assert found.value == shown
    assert found.message.startswith("heat")


def test_a_value_that_cannot_be_found():
    """A body that ends in the middle cannot be decoded without types either."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"parts": [], "heat": 9}, Whole)
    assert fault(caught.value, None).message == "heat: Expected `float` <= 2.0"
