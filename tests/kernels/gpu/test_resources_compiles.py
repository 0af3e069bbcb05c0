"""The checks of resources find what they are there to find."""

import pytest
import triton
import triton.language as tl

from gpu import resources as checked
from gpu.resources import SM_80, SM_90, check, named, resources, targets

TYPES = {"a_ptr": "*bf16", "b_ptr": "*bf16", "out_ptr": "*fp32", "steps": "i32"}
SIZES = {"M": 64, "N": 64, "K": 64}


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    sums = tl.zeros((M, N), tl.float32)
    for step in range(steps):
        a = tl.load(a_ptr + rows[:, None] * 4096 + step * K + inner[None, :])
        b = tl.load(b_ptr + (step * K + inner[:, None]) * N + columns[None, :])
        sums = tl.dot(a, b, sums)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], sums)


@pytest.fixture(autouse=True)
def figures(monkeypatch, tmp_path):
    monkeypatch.setattr(checked, "FIGURES", tmp_path)
    monkeypatch.setenv("TEST_WRITE_FIGURES", "1")


@pytest.mark.parametrize("target", [SM_90, SM_80], ids=named)
def test_a_product_of_64_rows_passes(target):
    took = check(product_kernel, "64", TYPES, SIZES, target, wgmma=True, num_warps=4)
    assert (took.wgmma > 0, took.mma_sync > 0) == ((True, False) if target == SM_90 else (False, True))
    assert 32 < took.registers < 256


def test_fewer_rows_have_no_warp_group_instructions():
    with pytest.raises(AssertionError, match="no warp-group"):
        check(product_kernel, "16", TYPES, SIZES | {"M": 16}, SM_90, wgmma=True, num_warps=4)


def test_a_sum_too_large_for_the_registers_spills():
    took = resources(product_kernel, TYPES, SIZES | {"M": 256, "N": 256}, SM_80, num_warps=4)
    assert took.spill_stores > 0
    assert took.spill_loads > 0
    with pytest.raises(AssertionError, match="spilled"):
        check(product_kernel, "256", TYPES, SIZES | {"M": 256, "N": 256}, SM_80, num_warps=4)


def test_stages_can_take_too_much_shared_memory():
    with pytest.raises(AssertionError, match="shared memory"):
        check(product_kernel, "stages", TYPES, SIZES | {"K": 128}, SM_80, num_warps=4, num_stages=9)


def test_more_registers_than_the_committed_figure(monkeypatch):
    check(product_kernel, "64", TYPES, SIZES, SM_80, num_warps=4)
    monkeypatch.delenv("TEST_WRITE_FIGURES")
    check(product_kernel, "64", TYPES, SIZES, SM_80, num_warps=4)
    with pytest.raises(AssertionError, match="registers with Triton"):
        check(product_kernel, "64", TYPES, SIZES, SM_80, num_warps=2)
    with pytest.raises(AssertionError, match="has no figure"):
        check(product_kernel, "other", TYPES, SIZES, SM_80, num_warps=4)


def test_fp8_begins_with_sm_90():
    assert targets("*bf16", "*fp8e4nv") == [SM_90]
    assert targets("*bf16") == [SM_90, SM_80]
