"""What latent attention takes on cards, in the tiles that it is launched with, for DeepSeek's 512 and 64."""

import pytest

from actorlm.kernels.gpu.latent_attention import latent_attention_kernel
from actorlm.kernels.gpu.tiles import TILES
from gpu.resources import SM_80, SM_90, check

CACHED = {1: "*fp8e4nv", 2: "*bf16", 4: "*fp32"}


@pytest.mark.parametrize("row", [at for at in TILES if at[0] == "latent"], ids=str)
def test_each_tile_of_the_table(row):
    _, size, itemsize, card = row
    tile = TILES[row]
    dtype = "fp32" if itemsize == 4 else "bf16"
    types = {
        "means_ptr": "*fp32", "totals_ptr": "*fp32", "q_ptr": f"*{dtype}", "cache_ptr": CACHED[itemsize],
        "tables_ptr": "*i32", "lengths_ptr": "*i32", "scale": "fp32", "cache_scale": "fp32", "table_width": "i32",
        "q_stride": "i32:16",
    }  # fmt: skip
    constants = {
        "HEADS": 128, "SPLITS": 16, "L": size, "R": 64, "M": tile.rows, "N": tile.columns,
        "PRECISION": "ieee" if dtype == "fp32" else "tf32",
    }  # fmt: skip
    check(
        latent_attention_kernel, f"{CACHED[itemsize][1:]} {tile.rows}", types, constants,
        SM_90 if card == "sm_90" or itemsize == 1 else SM_80, wgmma=card == "sm_90", num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
