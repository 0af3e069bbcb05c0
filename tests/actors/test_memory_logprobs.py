"""Log-probabilities through all actors: each token's once, whatever preempts, cuts, delays or shares a step with it."""

import asyncio

import pytest

from actorlm.actors.generation import NOWHERE, Choice
from actorlm.api.ports import ANYWHERE
from actorlm.errors import BadRequest
from actorlm.logprobs import Scores, joined


async def collect(generation):
    """(all scores, number of tokens) of one choice; prompt positions follow each other."""
    scores, tokens = None, 0
    async for deltas in generation:
        for delta in deltas:
            tokens += delta.tokens
            if delta.scores is not None and delta.scores.prompt:
                assert delta.scores.start == (1 if scores is None else scores.end)
            scores = joined(scores, delta.scores)
    return scores, tokens


ASKED = {"logprobs": 2, "prompt_logprobs": 1, "logprob_token_ids": (7,), "seed": 9}


def shape(scores):
    return [(entry.token, entry.rank, len(entry.others)) for entry in (*scores.prompt, *scores.output)]


async def test_prompt_and_output_are_scored(memory_tree):
    async with memory_tree() as tree:
        scores, tokens = await collect(tree.submit(range(1, 40), **ASKED))
        assert [entry.token for entry in scores.prompt] == list(range(2, 40))
        assert {len(entry.others) for entry in scores.prompt} == {1}
        assert len(scores.output) == tokens == 8
        assert {(entry.rank, entry.others[0], entry.others[2][0]) for entry in scores.output} == {
            (1, (entry.token, entry.logprob), 7) for entry in scores.output
        }
        again, _ = await collect(tree.submit(range(1, 40), **ASKED))
        assert shape(again) == shape(scores), "although the prefix is cached now"
        await tree.settled()


async def test_only_those_who_ask_get_any(memory_tree):
    async with memory_tree() as tree:
        asked, plain = await asyncio.gather(
            collect(tree.submit([1, 2], logprobs=0)), collect(tree.submit([1, 2], max_tokens=9))
        )
        assert len(asked[0].output) == asked[1] == 8
        assert plain == (None, 9)


async def test_a_stop_string_cuts_the_scores_with_the_tokens(memory_tree):
    async with memory_tree() as tree:
        generation = tree.submit([1], stop=("AAA",), logit_bias=((65, 100.0),), max_tokens=50, logprobs=0)
        scores, tokens = await collect(generation)
        assert len(scores.output) == tokens == 3


async def test_d02_each_is_scored_once_under_preemption_and_in_chunks(memory_tree):
    """Prompts come in chunks of up to 16 tokens, and the pool holds four of the sixteen sequences."""
    prompts = [[number, *range(60)] for number in range(16)]
    async with memory_tree() as tree:
        alone = [await collect(tree.submit(prompt, **ASKED, max_tokens=40)) for prompt in prompts]
    async with memory_tree(kv_tokens=416, scheduler={"max_num_batched_tokens": 24}) as tree:
        together = await asyncio.gather(*(collect(tree.submit(prompt, **ASKED, max_tokens=40)) for prompt in prompts))
        assert tree.scheduler.num_preemptions > 0
        for (expected, _), (scores, tokens) in zip(alone, together, strict=True):
            assert shape(scores) == shape(expected)
            assert len(scores.prompt) == 60
            assert len(scores.output) == tokens == 40
        await tree.settled()


async def test_a_slow_reader_gets_all_of_them_at_once(memory_tree):
    async with memory_tree() as tree:
        generation = tree.submit([1, 2, 3], **ASKED)
        await tree.until(lambda: not tree.frontend._open)
        (delta,) = await anext(generation)
        assert (len(delta.scores.prompt), len(delta.scores.output), delta.tokens) == (2, 8, 8)


async def test_time_to_the_first_token_does_not_count_scores_of_the_prompt(memory_tree):
    async with memory_tree(step_ms=20, scheduler={"max_num_batched_tokens": 8}) as tree:
        generation = tree.submit(range(60), prompt_logprobs=0, max_tokens=1)
        first = await anext(generation)
        (choice,) = tree.frontend._open.values()
        assert first[0].tokens == 0
        assert len(first[0].scores.prompt) == 8
        assert choice.last_token_at is None
        scores, tokens = await collect_rest(generation)
        assert (len(scores.prompt), tokens) == (51, 1)


async def collect_rest(generation):
    scores, tokens = None, 0
    async for (delta,) in generation:
        scores, tokens = joined(scores, delta.scores), tokens + delta.tokens
    return scores, tokens


def test_a_later_attempt_repeats_nothing_of_the_prompt():
    def prompt(*tokens):
        scores = Scores()
        for token in tokens:
            scores.prompt.append(1, [token], [0.0])
        return scores

    choice = Choice(1, 0, None, NOWHERE, 0.0, None, "", ANYWHERE)
    taken = [choice.take_scores(prompt(*tokens)) for tokens in ([1, 2, 3], [1, 2], [1, 2, 3, 4, 5])]
    assert [[entry.token for entry in scores.prompt] for scores in taken] == [[1, 2, 3], [], [4, 5]]
    assert taken[2].start == 4


async def test_c04_the_engine_refuses_what_leaves_nothing_to_choose(memory_tree):
    async with memory_tree() as tree:
        ends = tree.model.eos_token_ids
        with pytest.raises(BadRequest) as caught:
            await collect(tree.submit([1], min_tokens=1, allowed_token_ids=ends))
        assert caught.value.param == "allowed_token_ids"
        assert await collect(tree.submit([1])) == (None, 8)
