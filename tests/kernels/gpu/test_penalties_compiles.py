"""Penalties compile for the cards without spills, as they are launched."""

import pytest

from actorlm.kernels.gpu.penalties import BLOCK, NUM_WARPS, append_tokens_kernel, penalties_kernel
from gpu.resources import check, named, targets

TYPES = {
    "slots_ptr": "*i32",
    "repetition_ptr": "*fp32",
    "frequency_ptr": "*fp32",
    "presence_ptr": "*fp32",
    "counts_ptr": "*i32",
    "size": "i32:16",
}


@pytest.mark.parametrize("target", targets(), ids=named)
def test_applying(target):
    more = {"logits_ptr": "*fp32", "prompt_ptr": "*i32", "words": "i32", "row_stride": "i32:16"}
    check(penalties_kernel, f"block {BLOCK}", {**TYPES, **more}, {"BLOCK": BLOCK}, target, num_warps=NUM_WARPS)


@pytest.mark.parametrize("target", targets(), ids=named)
def test_counting(target):
    types = {**TYPES, "tokens_ptr": "*i32", "rows": "i32"}
    check(append_tokens_kernel, "128 rows", types, {"BLOCK": 128}, target, num_warps=4)
