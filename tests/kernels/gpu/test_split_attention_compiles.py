"""What split attention and the merge take on cards, in the tiles that they are launched with."""

import pytest

from actorlm.kernels.gpu.merge_splits import merge_splits_kernel
from actorlm.kernels.gpu.split_attention import split_attention_kernel
from actorlm.kernels.gpu.tiles import TILES
from gpu.resources import SM_80, SM_90, check, named

CACHED = {1: "*fp8e4nv", 2: "*bf16", 4: "*fp32"}
ROWS = [at for at in TILES if at[0] == "decode"]


def compile_row(row, target, *, case="", soft_cap=None, window=None):
    _, size, itemsize, _ = row
    tile = TILES[row]
    dtype = "fp32" if itemsize == 4 else "bf16"
    types = {
        "means_ptr": "*fp32", "totals_ptr": "*fp32", "q_ptr": f"*{dtype}", "kv_ptr": CACHED[itemsize],
        "tables_ptr": "*i32", "lengths_ptr": "*i32", "scale": "fp32", "value_scale": "fp32", "table_width": "i32",
        "values_at": "i64:16", "q_stride": "i32:16",
    }  # fmt: skip
    constants = {
        "SOFT_CAP": soft_cap, "WINDOW": window, "HEADS": 32, "KV_HEADS": 8, "SPLITS": 16, "H": size, "D": size,
        "M": tile.rows, "N": tile.columns, "PRECISION": "ieee" if dtype == "fp32" else "tf32",
    }  # fmt: skip
    check(
        split_attention_kernel, f"{size} {CACHED[itemsize][1:]}{case}", types, constants, target,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_tile_of_the_table(row):
    for target in [SM_90] if row[2] == 1 else [SM_80, SM_90]:
        compile_row(row, target)


def test_window_and_cap():
    compile_row(("decode", 128, 1, ""), SM_90, case=" variants", soft_cap=30.0, window=4096)


@pytest.mark.parametrize("target", [SM_80, SM_90], ids=named)
@pytest.mark.parametrize(("size", "warps"), [(128, 1), (512, 4)])
def test_merge(size, warps, target):
    types = {"out_ptr": "*bf16", "means_ptr": "*fp32", "totals_ptr": "*fp32", "sinks_ptr": "*fp32"}
    constants = {"HEADS": 32, "SPLITS": 32, "P": 32, "H": size, "D": size}
    check(merge_splits_kernel, str(size), types, constants, target, num_warps=warps)
