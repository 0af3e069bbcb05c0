"""Mends `tl.dot` of bfloat16 in Triton's interpreter.

The interpreter keeps bfloat16 numbers as 16-bit integers, and multiplies those integers (Triton 3.6 to 3.9).
`test_interpreter.py` fails when that has ended, and this file can go.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

original_dot = interpreter.InterpreterBuilder.create_dot


def floats(handle):
    """The numbers of a tensor, as numpy can multiply them."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    """As the original, for bfloat16 too."""
    if tl.bfloat16 not in (a.dtype.scalar, b.dtype.scalar):
        return original_dot(self, a, b, d, input_precision, max_num_imprecise_acc)
    product = np.matmul(floats(a), floats(b), dtype=d.data.dtype)
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def mend_dot():
    """From now on interpreted kernels multiply bfloat16 right."""
    interpreter.InterpreterBuilder.create_dot = create_dot
