"""Bitmasks of token ids: int32 words of 32 ids each, the lowest bit first, as llguidance and xgrammar have them."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def num_words(size: int) -> int:
    """How many words the bits of so many ids take."""
    return -(-size // 32)


def pack(ids: Tensor, size: int) -> Tensor:
    """The words, int32, whose bits are set for these ids of a vocabulary of `size`."""
    bits_WB = torch.zeros(num_words(size), 32, dtype=torch.int64, device=ids.device)
    bits_WB.view(-1)[ids.long()] = 1
    words_W = (bits_WB << torch.arange(32, device=ids.device)).sum(dim=-1)
    return torch.where(words_W < 2**31, words_W, words_W - 2**32).int()


@triton.jit
def bits_of(words_ptr, ids, words) -> tl.tensor:
    """Whether each id's bit is set; those after the last word have none."""
    return (tl.load(words_ptr + ids // 32, mask=ids // 32 < words, other=0) >> (ids % 32)) & 1
