"""The guarantee of the native kernels: a request's logits have the same bits whatever else is computed, and how."""

import random

import msgspec
import pytest
import torch
from driving import VARIANTS, Driver, make_runner, make_tiny, plan_logits, random_prompts, step_logits, weight_type
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_gguf

from actorlm.checkpoint.gguf_metadata import describe_gguf
from actorlm.config import BLOCK_SIZE
from actorlm.kernels.attention_variant import AttentionVariant
from actorlm.kernels.native import choose_level
from actorlm.wire import int32, read_int32

pytestmark = pytest.mark.skipif(choose_level("auto") is None, reason="there are no compiled kernels")

LENGTHS = (1, 5, 16, 17, 33, 64, 100, 150)
BLOCKS = 256


ATTENTION = {
    "window": AttentionVariant(window=21),
    "all": AttentionVariant(scale=0.3, soft_cap=2.0, window=40, sinks_n=torch.linspace(-2.0, 3.0, 8)),
}
CASES = (
    *((variant, "auto", "auto", "plain") for variant in VARIANTS),
    *(("grouped-tied", "auto", kind, attention) for kind in ("float16", "int8") for attention in ("plain", *ATTENTION)),
    *(("grouped-tied", "auto", "float32", attention) for attention in ATTENTION),
    *(("grouped-tied", weights, "auto", "plain") for weights in ("float16", "int8", "gguf")),
)
"""A model, the form of its weights, the type of its cache, and what its attention is."""


def change_attention(runner, name):
    for layer in runner.model._layers if name in ATTENTION else ():
        layer.attention.variant = ATTENTION[name]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def native(request, tmp_path_factory):
    """A runner with two threads, and the logits of each prompt, computed alone and at once."""
    variant, weights, kind, attention = request.param
    directory = tmp_path_factory.mktemp(variant)
    model, description = make_tiny(variant, directory)
    if weights == "gguf":
        write_gguf("llama", model, directory / "tiny.gguf", weight_type)
        description = describe_gguf(directory / "tiny.gguf", variant)
    changes = {"num_blocks": BLOCKS, "weights": weights, "kv_cache_dtype": kind}
    runner = make_runner(description, kernels="native", threads=2, **changes)
    change_attention(runner, attention)
    prompts = random_prompts(11, *LENGTHS)
    return runner, prompts, [logits_of(runner, prompt) for prompt in prompts]


def logits_of(runner, prompt):
    driver = Driver(runner, BLOCKS)
    driver.add(0, [*prompt, 0])  # the last id is never computed, so that no row is sampled
    [logits] = step_logits(driver, [(0, len(prompt))])
    finish(driver)
    return logits


def finish(driver):
    for slot in list(driver.ids):
        driver.release(slot)
    driver.step([])


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), chosen=st.lists(st.sampled_from(range(len(LENGTHS))), min_size=1, max_size=12))
def test_any_batch_any_chunks_any_slots_any_blocks(native, seed, chosen):
    runner, prompts, alone = native
    source, driver = random.Random(seed), Driver(runner, BLOCKS, shuffle=seed)
    slots = source.sample(range(16), len(chosen))
    for slot, number in zip(slots, chosen, strict=True):
        driver.add(slot, [*prompts[number], 0])
    parts = {slot: [] for slot in slots}
    while unfinished := [slot for slot in slots if driver.left(slot) > 1]:
        most = source.choice([1, 3, 16, 40, 200])
        some = source.sample(unfinished, source.randint(1, len(unfinished)))
        rows = [(slot, min(most, driver.left(slot) - 1)) for slot in some]
        for (slot, _), logits in zip(rows, step_logits(driver, rows), strict=True):
            parts[slot].append(logits)
    finish(driver)
    for slot, number in zip(slots, chosen, strict=True):
        assert torch.equal(torch.cat(parts[slot]), alone[number])


@pytest.mark.parametrize("before", [[], [64], [7, 57]], ids=["in this step", "in one before", "in chunks before"])
def test_keys_that_another_request_computes(native, before):
    """A prefix hit: the first two blocks are another's."""
    runner, prompts, alone = native
    driver, prompt = Driver(runner, BLOCKS, shuffle=1), prompts[5]
    driver.add(0, [*prompt, 0])
    for count in before:
        step_logits(driver, [(0, count)])
    driver.add(1, [*prompt, 0])
    driver.blocks[1], driver.computed[1] = [-1, -1], 2 * BLOCK_SIZE
    rows = [(1, 64 - 2 * BLOCK_SIZE)] if before else [(0, 64), (1, 64 - 2 * BLOCK_SIZE)]
    plan = driver.plan(rows)
    plan = msgspec.structs.replace(
        plan,
        block_slots=int32([1, 1, *read_int32(plan.block_slots)]),
        block_ids=int32([*driver.blocks[0][:2], *read_int32(plan.block_ids)]),
    )
    logits = plan_logits(driver, plan, rows)[-1]
    assert torch.equal(logits, alone[5][2 * BLOCK_SIZE :])
    driver.blocks[1] = driver.blocks[1][2:]
    finish(driver)


def test_one_thread_and_two_give_the_same_bits(native, request):
    _, weights, kind, attention = request.node.callspec.params["native"]
    runner, prompts, alone = native
    changes = {"num_blocks": BLOCKS, "weights": weights, "kv_cache_dtype": kind}
    single = make_runner(runner.description, kernels="native", threads=1, **changes)
    change_attention(single, attention)
    assert torch.equal(logits_of(single, prompts[7]), alone[7])
