"""Greedy output of the real model equals transformers', whatever way it is computed and delivered."""

import pytest
from tree import in_parallel

pytestmark = [pytest.mark.serving, pytest.mark.timeout(600)]

GREEDY = {"temperature": 0, "max_tokens": 64}


def _plain(tree, item):
    return tree.text(item["prompt_ids"], **GREEDY)


def _streamed(tree, item):
    return tree.streamed_text(item["prompt_ids"], **GREEDY)


def _together(tree, golden, times=4):
    return in_parallel([lambda item=item: _streamed(tree, item) for item in golden * times])


def test_alone(smollm2, golden, golden_texts):
    assert [_plain(smollm2, item) for item in golden] == golden_texts


def test_streamed(smollm2, golden, golden_texts):
    assert [_streamed(smollm2, item) for item in golden] == golden_texts


def test_four_times_over_in_one_batch(smollm2, golden, golden_texts):
    assert _together(smollm2, golden) == golden_texts * 4


def test_past_the_end_of_text(smollm2, golden):
    for item in golden:
        assert (
            smollm2.text(item["prompt_ids"], **GREEDY, ignore_eos=True, skip_special_tokens=False)
            == item["ignore_eos_text"]
        )


def test_chat_renders_and_tokenizes_as_the_reference(smollm2, golden):
    for item in golden:
        if item["kind"] == "chat":
            answer = smollm2.chat(item["prompt"], **GREEDY)
            assert answer["choices"][0]["message"]["content"] == item["greedy_text"]
            assert answer["usage"]["prompt_tokens"] == len(item["prompt_ids"])
            assert answer["usage"]["completion_tokens"] == len(item["greedy_ids"])


def test_d03_prefix_hits(smollm2, golden, golden_texts):
    for item, text in zip(golden, golden_texts, strict=True):
        for _ in range(3):
            answer = smollm2.complete(item["prompt_ids"], **GREEDY)
            assert answer["choices"][0]["text"] == text
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (len(item["prompt_ids"]) - 1) // 16 * 16


@pytest.mark.parametrize(
    "options",
    [
        ("--max-num-batched-tokens", 16),
        ("--dp", 2),
        ("--executor", "broadcast"),
        ("--tp", 3),
        ("--pp", 2),
        ("--no-async-scheduling",),
        ("--no-prefix-caching",),
        ("--cpu-kernels", "torch"),
    ],
    ids=["chunks of 16", "dp 2", "broadcast", "tp 3", "pp 2", "a step at a time", "no prefix caching", "plain torch"],
)
def test_computed_otherwise(start, golden, golden_texts, options):
    tree = start("--dtype", "float32", *options)
    assert _together(tree, golden) == golden_texts * 4
    tree.settled()


def test_d02_preempted(start, golden, golden_texts):
    """Eight sequences of up to 104 tokens in a pool of 256."""
    tree = start("--dtype", "float32", "--kv-cache-tokens", 256)
    assert _together(tree, golden, times=2) == golden_texts * 2
    assert tree.total("num_preemptions_total") > 0
    tree.settled()
