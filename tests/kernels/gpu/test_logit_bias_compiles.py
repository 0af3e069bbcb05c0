"""Logit biases compile for the cards without spills, as they are launched."""

import pytest

from actorlm.kernels.gpu.logit_bias import BLOCK, NUM_WARPS, logit_bias_kernel
from gpu.resources import check, named, targets

TYPES = {
    "logits_ptr": "*fp32",
    "slots_ptr": "*i32",
    "counts_ptr": "*i32",
    "ids_ptr": "*i32",
    "values_ptr": "*fp32",
    "row_stride": "i32:16",
}


@pytest.mark.parametrize("target", targets(), ids=named)
def test_it(target):
    check(logit_bias_kernel, "1024 at most", TYPES, {"N": 1024, "BLOCK": BLOCK}, target, num_warps=NUM_WARPS)
