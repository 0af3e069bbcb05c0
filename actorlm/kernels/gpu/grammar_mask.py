"""Rules out the tokens whose bits are not set, in place: the logits of all others become -inf.

Legend: S rows, V vocabulary, K bitmasks, W words of 32 ids.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.bitmask import bits_of
from actorlm.kernels.gpu.columns import check_column

BLOCK, NUM_WARPS = 4096, 8


def reference(logits_SV: Tensor, masks_S: Tensor, allowed_KW: Tensor) -> None:
    """See `apply_grammar_mask`."""
    bits_KWB = allowed_KW[:, :, None] >> torch.arange(32) & 1
    missing = max(0, logits_SV.shape[1] - 32 * allowed_KW.shape[1])
    out_KV = torch.nn.functional.pad(bits_KWB.flatten(1) == 0, (0, missing), value=True)
    for row, mask in enumerate(masks_S.tolist()):
        if mask >= 0:
            logits_SV[row].masked_fill_(out_KV[mask, : logits_SV.shape[1]], float("-inf"))


@triton.jit
def grammar_mask_kernel(
    logits_ptr, masks_ptr, allowed_ptr, size, words, row_stride, mask_stride, BLOCK: tl.constexpr
) -> None:
    """One block of one row a program. Logits are not read."""
    row = tl.program_id(0).to(tl.int64)
    mask = tl.load(masks_ptr + row).to(tl.int64)
    if mask >= 0:
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        allowed = bits_of(allowed_ptr + mask * mask_stride, ids, words)
        tl.store(logits_ptr + row * row_stride + ids, float("-inf"), mask=(allowed == 0) & (ids < size))


def apply_grammar_mask(logits_SV: Tensor, masks_S: Tensor, allowed_KW: Tensor, block: int = BLOCK) -> None:
    """Changes logits [S, V], of any float type.

    `masks_S` int32 is the bitmask of each row, -1 for rows that are left alone. `allowed_KW` int32 has a bit for each
    id that may come; ids for which it has no word are out, such as those that pad a vocabulary beyond the tokenizer's.
    Fits a CUDA graph: all that varies lies on the device.
    """
    rows, size = logits_SV.shape
    assert logits_SV.is_floating_point(), "logits are floats"
    assert logits_SV.stride(1) == 1, "a row's logits are dense"
    assert allowed_KW.dtype is torch.int32, "bitmasks are int32"
    assert allowed_KW.stride(1) == 1, "a bitmask's words are dense"
    check_column("masks_S", masks_S, torch.int32, rows)
    grammar_mask_kernel[(rows, triton.cdiv(size, block))](
        logits_SV,
        masks_S,
        allowed_KW,
        size,
        allowed_KW.shape[1],
        logits_SV.stride(0),
        allowed_KW.stride(0),
        BLOCK=block,
        num_warps=NUM_WARPS,
    )
