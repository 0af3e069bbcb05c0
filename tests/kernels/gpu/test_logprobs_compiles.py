"""logprobs compiles for the cards without spills, as it is launched."""

import pytest

from actorlm.kernels.gpu.logprobs import BLOCK, NUM_WARPS, logprobs_merge_kernel, logprobs_part_kernel
from gpu.resources import check, named, targets

INPUTS = {"slots_ptr": "*i32", "tokens_ptr": "*i32", "counts_ptr": "*i32", "row_stride": "i32:16"}
PARTS = {"highest_ptr": "*fp32", "sums_ptr": "*fp32", "keys_ptr": "*i64"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("target", targets(), ids=named)
def test_parts(target, dtype):
    types = {"logits_ptr": f"*{dtype}", "ranks_ptr": "*i32", "size": "i32:16", **INPUTS, **PARTS}
    check(logprobs_part_kernel, dtype, types, {"N": 20, "BLOCK": BLOCK}, target, num_warps=NUM_WARPS)


@pytest.mark.parametrize(("most_probable", "by_id"), [(0, 0), (20, 0), (20, 128)])
@pytest.mark.parametrize("target", targets(), ids=named)
def test_merge(target, most_probable, by_id):
    types = {
        "logits_ptr": "*bf16",
        "wanted_ids_ptr": "*i32",
        "part_ranks_ptr": "*i32",
        "ids_ptr": "*i32",
        "values_ptr": "*fp32",
        "ranks_ptr": "*i32",
        "parts": "i32",
        **INPUTS,
        **PARTS,
    }
    width = 128 if by_id else 32
    constants = {"N": most_probable, "M": by_id, "PARTS": 64, "WIDTH": width}
    check(logprobs_merge_kernel, f"{most_probable} and {by_id}", types, constants, target, num_warps=NUM_WARPS)
