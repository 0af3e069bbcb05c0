"""The grammar's bitmask compiles for the cards without spills, as it is launched."""

import pytest

from actorlm.kernels.gpu.grammar_mask import BLOCK, NUM_WARPS, grammar_mask_kernel
from gpu.resources import check, named, targets

TYPES = {"masks_ptr": "*i32", "allowed_ptr": "*i32", "size": "i32:16", "words": "i32", "mask_stride": "i32"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("target", targets(), ids=named)
def test_it(target, dtype):
    types = {**TYPES, "logits_ptr": f"*{dtype}", "row_stride": "i32:16"}
    check(grammar_mask_kernel, dtype, types, {"BLOCK": BLOCK}, target, num_warps=NUM_WARPS)
