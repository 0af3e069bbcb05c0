"""What the unified attention kernel takes on cards, in every tile that it is launched with."""

import pytest

from actorlm.kernels.gpu.paged_attention import paged_attention_kernel
from actorlm.kernels.gpu.tiles import TILES
from gpu.resources import SM_80, SM_90, check

CACHED = {1: "*fp8e4nv", 2: "*bf16", 4: "*fp32"}
ROWS = [at for at in TILES if at[0] in ("prefill", "decode")]


def cards(row):
    """Which cards use a row."""
    if row[3] == "sm_90" or row[2] == 1:  # sm_80 has no fp8
        return [SM_90]
    return [SM_80] if (*row[:3], "sm_90") in TILES else [SM_80, SM_90]


def compile_row(row, target, *, case="", soft_cap=None, window=None, sinks=True):
    kind, size, itemsize, card = row
    tile = TILES[row]
    dtype = "fp32" if itemsize == 4 else "bf16"
    types = {
        "out_ptr": f"*{dtype}", "q_ptr": f"*{dtype}", "kv_ptr": CACHED[itemsize], "tables_ptr": "*i32",
        "lengths_ptr": "*i32", "starts_ptr": "*i32", "sinks_ptr": "*fp32", "scale": "fp32", "value_scale": "fp32",
        "num_sequences": "i32", "table_width": "i32", "values_at": "i64:16", "q_stride": "i32:16",
    }  # fmt: skip
    constants = {
        "SOFT_CAP": soft_cap, "WINDOW": window, "HEADS": 32, "KV_HEADS": 8, "H": size, "D": size, "M": tile.rows,
        "N": tile.columns, "PRECISION": "ieee" if dtype == "fp32" else "tf32",
    } | ({} if sinks else {"sinks_ptr": None})  # fmt: skip
    check(
        paged_attention_kernel, f"{kind} {size} {CACHED[itemsize][1:]}{case}", types, constants, target,
        wgmma=kind == "prefill" and card == "sm_90", num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_tile_of_the_table(row):
    for target in cards(row):
        compile_row(row, target, case=" any" if row[2] == 1 and not row[3] else "", sinks=False)


VARIED = [("prefill", 128, 2, "sm_90"), ("prefill", 128, 2, ""), ("decode", 128, 1, "")]


@pytest.mark.parametrize("row", VARIED, ids=str)
def test_window_cap_and_sinks(row):
    compile_row(row, cards(row)[0], case=" variants", soft_cap=30.0, window=4096)
