"""choose_tokens compiles for the cards without spills, as it is launched."""

import pytest

from actorlm.kernels.gpu.choose_tokens import BLOCK, NUM_WARPS, choose_tokens_kernel
from gpu.resources import check, named, targets

TYPES = {
    "logits_ptr": "*fp32",
    "slots_ptr": "*i32",
    "positions_ptr": "*i64",
    "temperature_ptr": "*fp32",
    "min_p_ptr": "*fp32",
    "top_p_ptr": "*fp32",
    "top_k_ptr": "*i32",
    "seeds_ptr": "*i64",
    "tokens_ptr": "*i32",
    "best_ptr": "*fp32",
    "size": "i32:16",
    "row_stride": "i32:16",
}


@pytest.mark.parametrize("target", targets(), ids=named)
def test_it(target):
    took = check(choose_tokens_kernel, f"block {BLOCK}", TYPES, {"BLOCK": BLOCK}, target, num_warps=NUM_WARPS)
    assert took.registers <= 65536 // (32 * NUM_WARPS)
