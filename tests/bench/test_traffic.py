"""What is asked, and when: all of it follows from the options and a seed."""

import random
import statistics
from itertools import pairwise

import pytest

from actorlm.bench.traffic import (
    WARM_UP_TOKENS,
    Span,
    Traffic,
    check,
    fields,
    for_warm_up,
    parse_rate,
    parse_span,
    requests,
)  # fmt: skip
from actorlm.errors import ConfigError


def drawn(seed=0, **traffic):
    return requests(Traffic(**traffic), random.Random(seed))


def test_all_at_once():
    made = drawn(num_prompts=5)
    assert [one.due for one in made] == [0] * 5
    assert {(one.input_len, one.output_len) for one in made} == {(128, 64)}


def test_arrivals_are_a_poisson_process():
    due = [one.due for one in drawn(num_prompts=20_001, request_rate=50.0)]
    gaps = [after - before for before, after in pairwise(due)]
    assert due[0] == 0
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.03), "of an exponential distribution, as its mean"
    longer = sum(gap > 1 / 50 for gap in gaps) / len(gaps)
    assert longer == pytest.approx(2.718281828**-1, abs=0.02)


def test_lengths_are_drawn_from_their_spans():
    made = drawn(num_prompts=2000, input_len=Span(10, 13), output_len=Span(2, 3))
    assert {one.input_len for one in made} == {10, 11, 12, 13}
    assert {one.output_len for one in made} == {2, 3}


def test_a_seed_decides():
    traffic = {"num_prompts": 20, "request_rate": 3.0, "input_len": Span(10, 100)}
    assert drawn(**traffic) == drawn(**traffic) != drawn(seed=1, **traffic)


def test_the_warm_up_is_short_and_at_once():
    warm = for_warm_up(Traffic(output_len=Span(16, 500), request_rate=1.0, shared_prefix=9), 3)
    assert (warm.num_prompts, warm.output_len, warm.request_rate) == (3, Span(16, WARM_UP_TOKENS), None)
    assert warm.shared_prefix == 9


def test_bodies():
    body = fields(Traffic(), "m", [1, 2], 7)
    assert body == {
        "model": "m", "prompt": [1, 2], "max_tokens": 7, "temperature": 0.0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    body = fields(Traffic(api="chat", ignore_eos=False, temperature=0.5), "m", "Hi", 7)
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert body["temperature"] == 0.5
    assert not {"prompt", "ignore_eos"} & set(body)


@pytest.mark.parametrize(
    ("traffic", "named"),
    [
        (Traffic(shared_prefix=128), "--shared-prefix is 128 of 128"),
        (Traffic(shared_prefix=64, input_len=Span(64, 128)), "--shared-prefix is 64 of 64-128"),
        (Traffic(api="chat", prompts="ids"), "--prompts ids"),
    ],
)
def test_contradictions(traffic, named):
    with pytest.raises(ConfigError, match=named):
        check(traffic)


def test_spans_and_rates():
    assert (parse_span("5"), parse_span("5-9")) == (Span(5, 5), Span(5, 9))
    assert (parse_rate("2.5"), parse_rate("inf")) == (2.5, None)


@pytest.mark.parametrize("text", ["", "0", "-3", "x", "9-5", "1-", "1.5", "5-6-7", "0-4", "99999999999"])
def test_what_is_no_span(text):
    with pytest.raises(ValueError):
        parse_span(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "x", "-inf"])
def test_what_is_no_rate(text):
    with pytest.raises(ValueError):
        parse_rate(text)
