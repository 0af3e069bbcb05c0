"""The same seed and parameters give the same text through all actors: alone, among 32, and under preemption."""

import asyncio

from test_memory_tree import _collect

PARAMETERS = [
    {},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"presence_penalty": -2.0, "allowed_token_ids": tuple(range(60, 90))},
    {"allowed_token_ids": (65, 66, 67), "bad_words": ((65, 65), (67, 66, 65)), "frequency_penalty": 2.0},
]


def requests():
    return [
        ([number, *range(40)], {"seed": number, "max_tokens": 40, **PARAMETERS[number % 4]}) for number in range(32)
    ]


async def text_of(tree, prompt, parameters):
    texts, tokens, _ = await _collect(tree.submit(prompt, **parameters))
    assert tokens == {0: 40}
    return texts[0]


async def test_d02_alone_and_among_others_that_preempt_each_other(memory_tree):
    async with memory_tree() as tree:
        alone = [await text_of(tree, *request) for request in requests()]
    assert len(set(alone)) == len(alone)
    assert set(alone[3]) == set("ABC")
    assert not any(word in text for text in alone[3::4] for word in ("AA", "CBA"))
    async with memory_tree(kv_tokens=512, scheduler={"max_num_batched_tokens": 64}) as tree:
        together = await asyncio.gather(*(text_of(tree, *request) for request in requests()))
        assert tree.scheduler.num_preemptions > 0
        assert together == alone
        await tree.settled()
