"""The interpreter's products of bfloat16 and its rounding to fp8 are right as mended, and wrong without."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from gpu import interpreter as mended


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


def largest_error(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(16, 16).to(dtype), torch.randn(16, 16).to(dtype)
    out = torch.zeros(16, 16)
    dot_kernel[(1,)](a, b, out)
    return (out - a.double() @ b.double()).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_are_right(dtype):
    assert largest_error(dtype) < 1e-5


def test_without_the_mending_bfloat16_is_wrong(monkeypatch):
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", mended.original_dot)
    assert largest_error(torch.bfloat16) > 1e3


@triton.jit
def cast_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(out_ptr.dtype.element_ty))


def wrong_casts(dtype):
    x = torch.linspace(-440, 440, 4096).to(dtype) / torch.linspace(1, 300, 4096).to(dtype)
    out = torch.zeros(4096, dtype=torch.float8_e4m3fn)
    cast_kernel[(1,)](x, out, 4096)
    return (out.float() != x.to(torch.float8_e4m3fn).float()).sum().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fp8_is_rounded_as_torch_does(dtype):
    assert wrong_casts(dtype) == 0


def test_without_the_mending_carries_are_lost(monkeypatch):
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fp_to_fp", mended.original_cast)
    assert wrong_casts(torch.float32) > 10
