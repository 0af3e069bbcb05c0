"""Steps that repeat the launches of an earlier one give what they would have given anyway, bit for bit."""

import gc
import weakref

import pytest
import torch
from driving import Driver, make_runner, random_prompts, step_logits

from actorlm.kernels.native import Native, best_level, choose_level
from actorlm.models import stack

pytestmark = pytest.mark.skipif(choose_level("auto") is None, reason="there are no compiled kernels")

SIZES = [1, 3, 3, 1, 5, 3, 9, 5, 1, 9]


def run(description):
    """Logits of steps of so many rows each, one token a row, and the recordings that are left."""
    runner = make_runner(description, kernels="native", threads=2)
    driver = Driver(runner, 128, shuffle=1)
    for slot, prompt in enumerate(random_prompts(3, *[20] * max(SIZES))):
        driver.add(slot, prompt)
    logits = [step_logits(driver, [(slot, 1) for slot in range(size)]) for size in SIZES]
    return [part for parts in logits for part in parts], runner.model._stack._recordings


def test_a_repeated_step_gives_the_same_bits(tiny_grouped, monkeypatch):
    repeated, recordings = run(tiny_grouped[1])
    assert sorted(recordings) == [1, 3, 5, 9]
    monkeypatch.setattr(stack, "MAX_TOKENS", 0)
    anew, recordings = run(tiny_grouped[1])
    assert recordings == {}
    assert all(torch.equal(one, other) for one, other in zip(repeated, anew, strict=True))


def test_the_newest_recordings_are_kept(tiny_grouped, monkeypatch):
    monkeypatch.setattr(stack, "MAX_RECORDINGS", 2)
    assert list(run(tiny_grouped[1])[1]) == [9, 1]


def test_other_caches_are_not_taken_for_the_first(tiny_grouped):
    runner = make_runner(tiny_grouped[1], kernels="native", threads=1)
    driver = Driver(runner, 128)
    driver.add(0, [5, 6, 7, 8])
    step_logits(driver, [(0, 1)])
    runner._caches = [
        type(cache)(cache.all_2bk16H.clone(), keys_by_feature=cache.keys_by_feature) for cache in runner._caches
    ]
    before = [cache.all_2bk16H.clone() for cache in runner._caches]
    step_logits(driver, [(0, 1)])
    assert not any(torch.equal(cache.all_2bk16H, old) for cache, old in zip(runner._caches, before, strict=True))


def test_a_model_is_gone_once_nobody_has_it(tiny_grouped):
    """Its memory is: without waiting for the garbage collector."""
    gc.disable()
    try:
        runner = make_runner(tiny_grouped[1], kernels="native", threads=1)
        driver = Driver(runner, 128)
        driver.generate(random_prompts(4, 5), 3)
        left = weakref.ref(runner.model)
        del runner, driver
        assert left() is None
    finally:
        gc.enable()


def test_a_recording_that_fails_leaves_nothing_behind():
    native = Native(best_level(), 1)
    with pytest.raises(ZeroDivisionError), native.recording():
        raise ZeroDivisionError
    with native.recording() as launches:
        assert launches == []
