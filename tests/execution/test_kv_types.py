"""Runners with caches of each type: near float32, alike with both kinds of kernels, and refused where unknown."""

import pytest
import torch
from driving import Driver, make_runner, make_tiny, random_prompts, step_logits

from actorlm.kernels.native import choose_level
from actorlm.number_types import SIZES, type_of, vector_bytes

KERNELS = ["torch", pytest.param("native", marks=pytest.mark.skipif(choose_level("auto") is None, reason="none"))]


def logits(description, kernels, kind):
    """Of a prompt in two chunks, so that keys are read that an earlier step has stored."""
    runner = make_runner(description, kernels=kernels, kv_cache_dtype=kind)
    driver = Driver(runner, 128)
    driver.add(0, [*random_prompts(3, 70)[0], 0])
    parts = [step_logits(driver, [(0, 40)])[0], step_logits(driver, [(0, 30)])[0]]
    assert runner._caches[0].all_2bk16H.dtype is getattr(torch, kind)
    return torch.cat(parts)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("kind", "error"), [("bfloat16", 2e-2), ("float16", 3e-3), ("int8", 3e-2)])
def test_logits_are_near_those_of_float32(tmp_path, kernels, kind, error):
    _, description = make_tiny("grouped-tied", tmp_path)
    exact, near = (logits(description, kernels, each) for each in ("float32", kind))
    distance = (near - exact).norm() / exact.norm()
    assert 0 < distance < error


@pytest.mark.skipif(choose_level("auto") is None, reason="there are no compiled kernels")
def test_both_kinds_of_kernels_store_the_same_int8(tmp_path):
    """But for numbers between two whole ones, which a last bit of float32 may move."""
    _, description = make_tiny("grouped-tied", tmp_path)
    torch.testing.assert_close(*(logits(description, each, "int8") for each in ("torch", "native")), atol=0.02, rtol=0)


def test_auto_is_the_type_of_the_model():
    assert type_of("auto", "bfloat16") == "bfloat16"
    assert type_of("int8", "bfloat16") == "int8"
    assert type_of("auto", "auto") in SIZES


def test_bytes_of_a_vector():
    assert [vector_bytes(kind, 64) for kind in ("float32", "bfloat16", "float16", "int8")] == [256, 128, 128, 68]
