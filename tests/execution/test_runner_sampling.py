"""The same seed gives the same tokens: alone, in a batch, in chunks, and after preemption, whatever the parameters."""

import random

import pytest
from driving import VOCAB, Driver, make_runner, random_prompts

from actorlm.sampling import SamplingParams

COUNT = 24


def some_params(seed):
    """Parameters that look at what was generated before."""
    source = random.Random(seed)
    return SamplingParams(
        max_tokens=COUNT,
        seed=seed,
        temperature=source.choice([0.0, 0.8, 1.0, 1.5]),
        top_p=source.choice([1.0, 0.9]),
        top_k=source.choice([0, 20]),
        min_p=source.choice([0.0, 0.02]),
        repetition_penalty=source.choice([1.0, 1.3, 0.7]),
        presence_penalty=source.choice([0.0, 1.0, -1.0]),
        frequency_penalty=source.choice([0.0, 0.5, -0.3]),
        min_tokens=source.choice([0, 10]),
        bad_words=source.choice([(), ((5,), (7, 9), (11, 12, 13))]),
        allowed_token_ids=source.choice([None, tuple(range(0, VOCAB, 3))]),
    )


class Batch:
    """Requests that share one runner; each gets COUNT tokens."""

    def __init__(self, description, requests, *, chunk=1000):
        self.driver, self.requests, self.chunk = Driver(make_runner(description, max_num_seqs=40), 128), requests, chunk
        for slot, (prompt, params) in enumerate(requests):
            self.driver.add(slot, prompt, params)
        self.slots = list(range(len(requests)))

    def run(self, steps=10_000):
        for _ in range(steps):
            busy = [slot for slot in self.slots if len(self.output(slot)) < COUNT]
            if not busy:
                break
            self.driver.step([(slot, min(self.chunk, self.driver.left(slot))) for slot in busy])
        return [self.output(slot) for slot in self.slots]

    def output(self, slot):
        return self.driver.ids[slot][len(self.requests[self.slots.index(slot)][0]) :]

    def preempt(self, index):
        """The request enters another slot, with all ids that it has."""
        prompt, params = self.requests[index]
        known = self.driver.release(self.slots[index])
        self.slots[index] = len(self.requests) + index
        self.driver.add(self.slots[index], known, params, len(prompt))


@pytest.fixture(scope="module")
def requests():
    prompts = random_prompts(4, *[4 + number % 9 for number in range(32)])
    return [(prompt, some_params(seed)) for seed, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def alone(tiny_grouped, requests):
    return [Batch(tiny_grouped[1], [request]).run()[0] for request in requests]


def test_in_a_batch_of_32(tiny_grouped, requests, alone):
    assert Batch(tiny_grouped[1], requests).run() == alone
    assert len({tuple(output) for output in alone}) == 32


def test_in_chunks(tiny_grouped, requests, alone):
    assert Batch(tiny_grouped[1], requests[:6], chunk=3).run() == alone[:6]


@pytest.mark.parametrize("after", [1, 9, 20])
def test_after_preemption(tiny_grouped, requests, alone, after):
    batch = Batch(tiny_grouped[1], requests[:8])
    batch.run(after)
    for index in (0, 3, 6):
        batch.preempt(index)
    assert batch.run() == alone[:8]
