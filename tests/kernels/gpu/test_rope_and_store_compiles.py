"""What rotating and storing takes on cards."""

import pytest

from actorlm.kernels.gpu.rope_and_store import HEADS_A_PROGRAM, rope_and_store_kernel
from gpu.resources import check, named, targets

CASES = [(cached, size, target) for cached in ("*bf16", "*fp8e4nv") for size in (64, 256) for target in targets(cached)]


@pytest.mark.parametrize(("cached", "size", "target"), CASES, ids=lambda x: named(x) if hasattr(x, "arch") else str(x))
def test_types_and_sizes(cached, size, target):
    types = {
        "heads_ptr": "*bf16", "rotation_ptr": "*fp32", "kv_ptr": cached, "places_ptr": "*i32", "key_divisor": "fp32",
        "value_divisor": "fp32", "values_at": "i64:16",
    }  # fmt: skip
    constants = {
        "HEADS": 32, "KV_HEADS": 8, "H": size, "PAIRS": size // 2, "M": HEADS_A_PROGRAM, "IS_FP8": "fp8" in cached,
    }  # fmt: skip
    check(rope_and_store_kernel, f"{size} {cached[1:]}", types, constants, target, num_warps=4)
