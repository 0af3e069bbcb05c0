"""The routers and the alignment, compiled: none of them may spill."""

import pytest

from actorlm.kernels.gpu.moe_align import count_pairs_kernel, place_pairs_kernel
from actorlm.kernels.gpu.topk_sigmoid import topk_sigmoid_kernel
from actorlm.kernels.gpu.topk_softmax import topk_softmax_kernel
from gpu.resources import SM_80, SM_90, check, named

BOTH = pytest.mark.parametrize("target", [SM_90, SM_80], ids=named)


@BOTH
def test_softmax(target):
    types = {
        "logits_ptr": "*bf16",
        "weights_ptr": "*fp32",
        "ids_ptr": "*i32",
        "num_experts": "i32:16",
        "logits_stride": "i32:16",
    }
    sizes = {"TOP_K": 8, "RENORMALISE": True, "BLOCK_X": 128, "BLOCK_K": 8}
    check(topk_softmax_kernel, "8 of 128", types, sizes, target, num_warps=1)


@BOTH
def test_sigmoid(target):
    types = {
        "logits_ptr": "*fp32",
        "bias_ptr": "*fp32",
        "weights_ptr": "*fp32",
        "ids_ptr": "*i32",
        "logits_stride": "i32:16",
        "scale": "fp32",
    }
    sizes = {"TOP_K": 8, "TOP_GROUPS": 4, "NUM_EXPERTS": 256, "NUM_GROUPS": 8, "BLOCK_K": 8}
    check(topk_sigmoid_kernel, "8 of 256", types, sizes, target, num_warps=1)


@BOTH
def test_align(target):
    types = {"ids_ptr": "*i32", "counts_ptr": "*i32", "num_pairs": "i32"}
    check(count_pairs_kernel, "many", types, {"BLOCK_P": 1024}, target)
    types |= {"pairs_ptr": "*i32", "experts_ptr": "*i32", "slots_ptr": "*i32", "num_experts": "i32"}
    sizes = {"BLOCK": 128, "BLOCK_P": 1024, "BLOCK_X": 256}
    check(place_pairs_kernel, "256 experts", types, sizes, target)
