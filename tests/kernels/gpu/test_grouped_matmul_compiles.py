"""grouped_matmul and sum_experts, compiled: with 64 rows or more they use warp-group instructions."""

import pytest
import torch

from actorlm.kernels.gpu.grouped_matmul import grouped_matmul_kernel, tile_for
from actorlm.kernels.gpu.sum_experts import sum_experts_kernel
from gpu.resources import SM_80, SM_90, check, named

TYPES = {
    "pairs_ptr": "*i32",
    "experts_ptr": "*i32",
    "slots_ptr": "*i32",
    "num_pairs": "i32",
    "size_n": "i32:16",
    "size_k": "i32:16",
    "x_stride": "i32:16",
    "weight_stride_x": "i32:16",
    "weight_stride_n": "i32:16",
}
NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


@pytest.mark.parametrize("target", [SM_90, SM_80], ids=named)
@pytest.mark.parametrize("gated", [True, False], ids=["gate_up", "down"])
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.values())
def test_grouped_matmul(dtype, block, gated, target):
    tile = tile_for(block, gated=gated, dtype=dtype)
    types = TYPES | dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{NAMES[dtype]}")
    sizes = {"DIVIDE": 8 if gated else 1, "GATED": gated, "BLOCK": block, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
    if gated:
        sizes["factors_ptr"] = None
    else:
        types["factors_ptr"] = "*fp32"
    check(
        grouped_matmul_kernel,
        f"{'gate_up' if gated else 'down'} {block} {NAMES[dtype]}",
        types,
        sizes,
        target,
        wgmma=block >= 64 and dtype is torch.bfloat16,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@pytest.mark.parametrize("target", [SM_90, SM_80], ids=named)
def test_sum_experts(target):
    types = {"y_ptr": "*bf16", "ids_ptr": "*i32", "out_ptr": "*bf16", "num_experts": "i32", "size": "i32:16"}
    check(sum_experts_kernel, "8 experts", types, {"TOP_K": 8, "BLOCK": 1024}, target)
