"""The products of 8-bit numbers and what belongs to them, compiled: 64 rows or more use warp-group instructions."""

import pytest

from actorlm.kernels.gpu import block_scaled_matmul, scaled_matmul
from actorlm.kernels.gpu.quantize_rows import quantize_rows_kernel
from actorlm.kernels.gpu.sum_splits import sum_splits_kernel
from gpu.resources import SM_80, SM_90, check, named, targets

BOTH = pytest.mark.parametrize("target", [SM_90, SM_80], ids=named)
TYPES = {
    "a_scales_ptr": "*fp32",
    "b_scales_ptr": "*fp32",
    "bias_ptr": "*bf16",
    "size_m": "i32",
    "size_n": "i32:16",
    "size_k": "i32:16",
    "a_stride": "i32:16",
    "b_stride": "i32:16",
    "split_k": "i32:16",
}
NAMES = {"*i8": "int8", "*fp8e4nv": "fp8"}


@pytest.mark.parametrize(
    ("kind", "target"),
    [(kind, target) for kind in NAMES for target in targets(kind)],
    ids=lambda x: NAMES.get(x) or named(x),
)
@pytest.mark.parametrize("rows", [16, 32, 64, 128])
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_scaled_matmul(rows, split, kind, target):
    tile = scaled_matmul.tile_for(rows)
    types = TYPES | {"a_ptr": kind, "b_ptr": kind, "out_ptr": "*fp32" if split else "*bf16"}
    sizes = {"INTEGER": kind == "*i8", "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
    check(
        scaled_matmul.scaled_matmul_kernel,
        f"{NAMES[kind]} {rows}{' split' if split else ''}",
        types,
        sizes | ({"bias_ptr": None} if split else {}),
        target,
        wgmma=rows >= 64,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@pytest.mark.parametrize("rows", [16, 64, 128])
def test_block_scaled_matmul(rows):
    tile = block_scaled_matmul.tile_for(rows)
    types = TYPES | {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "out_ptr": "*bf16"}
    check(
        block_scaled_matmul.block_scaled_matmul_kernel,
        f"{rows}",
        types,
        {"BLOCK_M": tile.m, "BLOCK_N": tile.n, "GROUP_K": tile.k},
        SM_90,
        wgmma=rows >= 64,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@pytest.mark.parametrize(
    ("kind", "target"),
    [(kind, target) for kind in NAMES for target in targets(kind)],
    ids=lambda x: NAMES.get(x) or named(x),
)
@pytest.mark.parametrize(("rows", "block"), [(1, 2048), (4, 128)])
def test_quantize_rows(rows, block, kind, target):
    types = {
        "x_ptr": "*bf16",
        "q_ptr": kind,
        "scales_ptr": "*fp32",
        "num_rows": "i32",
        "size": "i32:16",
        "x_stride": "i32:16",
    }
    sizes = {
        "LARGEST": 127.0 if kind == "*i8" else 448.0,
        "SMALLEST": 1e-30,
        "INTEGER": kind == "*i8",
        "ROWS": rows,
        "BLOCK": block,
    }
    check(
        quantize_rows_kernel,
        f"{NAMES[kind]} {rows}x{block}",
        types,
        sizes,
        target,
        num_warps=4,
        enable_fp_fusion=False,
    )


@BOTH
def test_sum_splits(target):
    types = {"parts_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16", "numel": "i32:16", "size": "i32:16"}
    check(sum_splits_kernel, "8 parts", types, {"SPLITS": 8, "BLOCK": 1024}, target)


def test_one_row():
    """Triton makes a constant of a size that is 1."""
    tile = scaled_matmul.tile_for(1)
    types = {name: kind for name, kind in TYPES.items() if name != "size_m"}
    types |= {"a_ptr": "*i8", "b_ptr": "*i8", "out_ptr": "*bf16"}
    sizes = {"size_m": 1, "INTEGER": True, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
    check(
        scaled_matmul.scaled_matmul_kernel,
        "one row",
        types,
        sizes,
        SM_90,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def test_one_number():
    types = {"parts_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16"}
    check(sum_splits_kernel, "one number", types, {"numel": 1, "size": 1, "SPLITS": 2, "BLOCK": 1024}, SM_90)
