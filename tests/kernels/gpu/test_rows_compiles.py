"""What the kernels that go through rows take on cards: norms, and the gate of the MLP."""

import pytest

from actorlm.kernels.gpu.add_rms_norm import add_rms_norm_kernel, warps
from actorlm.kernels.gpu.silu_mul import BLOCK, silu_mul_kernel
from gpu.resources import SM_80, SM_90, check, named

ON_BOTH = pytest.mark.parametrize("target", [SM_80, SM_90], ids=named)


@ON_BOTH
@pytest.mark.parametrize("size", [128, 4096, 16384])
def test_addition_and_norm(size, target):
    types = {
        "out_ptr": "*bf16", "x_ptr": "*bf16", "residual_ptr": "*bf16", "weight_ptr": "*bf16", "eps": "fp32",
        "x_stride": "i32:16",
    }  # fmt: skip
    constants = {"E": size, "BLOCK": size}
    check(add_rms_norm_kernel, f"{size}", types, constants, target, num_warps=warps(size))


@ON_BOTH
def test_norm(target):
    types = {"out_ptr": "*bf16", "x_ptr": "*bf16", "weight_ptr": "*bf16", "eps": "fp32", "x_stride": "i32:16"}
    constants = {"E": 4096, "BLOCK": 4096, "residual_ptr": None}
    check(add_rms_norm_kernel, "4096 alone", types, constants, target, num_warps=warps(4096))


@ON_BOTH
def test_gate(target):
    constants = {"F": 14336, "BLOCK": BLOCK}
    check(silu_mul_kernel, "14336", {"out_ptr": "*bf16", "x_ptr": "*bf16"}, constants, target, num_warps=4)
