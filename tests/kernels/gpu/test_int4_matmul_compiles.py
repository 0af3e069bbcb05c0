"""int4_matmul, compiled: with 64 rows or more it uses warp-group instructions."""

import pytest
import torch

from actorlm.kernels.gpu.int4_matmul import int4_matmul_kernel, tile_for
from gpu.resources import SM_80, SM_90, check, named

TYPES = {
    "packed_ptr": "*u8",
    "scales_ptr": "*fp16",
    "bias_ptr": "*bf16",
    "size_m": "i32",
    "size_n": "i32:16",
    "size_k": "i32:16",
    "x_stride": "i32:16",
    "split_k": "i32:16",
}


@pytest.mark.parametrize("target", [SM_90, SM_80], ids=named)
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "symmetric"])
@pytest.mark.parametrize(
    ("rows", "group"), [(16, 32), (16, 64), (16, 128), (32, 128), (64, 128), (128, 32), (128, 128)]
)
def test_int4_matmul(rows, group, zeros, target):
    tile = tile_for(rows)
    types = TYPES | {"x_ptr": "*bf16", "out_ptr": "*bf16"} | ({"zeros_ptr": "*u8"} if zeros else {})
    sizes = {"GROUP_K": group, "STEP_K": min(group, tile.k), "BLOCK_M": tile.m, "BLOCK_N": tile.n} | (
        {} if zeros else {"zeros_ptr": None}
    )
    check(
        int4_matmul_kernel,
        f"{rows} group {group}{' zeros' if zeros else ''}",
        types,
        sizes,
        target,
        wgmma=rows >= 64,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@pytest.mark.parametrize("target", [SM_90, SM_80], ids=named)
@pytest.mark.parametrize("rows", [16, 64])
def test_float32(rows, target):
    tile = tile_for(rows, torch.float32)
    types = TYPES | {"x_ptr": "*fp32", "out_ptr": "*fp32", "zeros_ptr": "*u8"}
    sizes = {"GROUP_K": 128, "STEP_K": tile.k, "BLOCK_M": tile.m, "BLOCK_N": tile.n}
    check(int4_matmul_kernel, f"{rows} fp32", types, sizes, target, num_warps=tile.warps, num_stages=tile.stages)


def test_one_row():
    """Triton makes a constant of a size that is 1."""
    tile = tile_for(1)
    types = {name: kind for name, kind in TYPES.items() if name != "size_m"} | {"x_ptr": "*bf16", "out_ptr": "*bf16"}
    sizes = {"zeros_ptr": None, "size_m": 1, "GROUP_K": 128, "STEP_K": tile.k, "BLOCK_M": tile.m, "BLOCK_N": tile.n}
    check(int4_matmul_kernel, "one row", types, sizes, SM_90, num_warps=tile.warps, num_stages=tile.stages)
