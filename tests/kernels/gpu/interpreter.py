"""Mends what Triton's interpreter gets wrong (Triton 3.6 to 3.9).

It keeps bfloat16 numbers as 16-bit integers, and `tl.dot` multiplies those integers. When it rounds up to fp8 e4m3 and
the mantissa overflows, the carry is lost: 1.99 becomes 1. `test_interpreter.py` fails when that has ended.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

original_dot = interpreter.InterpreterBuilder.create_dot
original_cast = interpreter.InterpreterBuilder.create_fp_to_fp


def floats(handle):
    """The numbers of a tensor, as numpy can use them."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    """As the original, for bfloat16 too."""
    if tl.bfloat16 not in (a.dtype.scalar, b.dtype.scalar):
        return original_dot(self, a, b, d, input_precision, max_num_imprecise_acc)
    product = np.matmul(floats(a), floats(b), dtype=d.data.dtype)
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def create_fp_to_fp(self, src, dst_type, rounding_mode):
    """As the original, but to fp8 e4m3 as a GPU: half to even, and what is too large to the largest number."""
    if dst_type.scalar != tl.float8e4nv:
        return original_cast(self, src, dst_type, rounding_mode)
    numbers = torch.from_numpy(np.array(floats(src), np.float32)).clamp(-448, 448)
    rounded = numbers.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return interpreter.TensorHandle(rounded, dst_type.scalar)


def mend():
    """From now on interpreted kernels do both right."""
    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.create_fp_to_fp = create_fp_to_fp
