"""Weights of 4 bits: how they lie for `int4_matmul`, and how they come there from checkpoints.

Each group of inputs of an output has a scale and a zero point: weight = (number - zero) * scale, numbers being 0 to 15.
Two numbers share a byte: of every 32 inputs, byte j has the j-th in its low half and the (16 + j)-th in its high half.
So a kernel gets two runs of inputs from a run of bytes, without moving numbers between threads.

Legend: K inputs, N outputs, G groups of inputs, B = K / 2 bytes, W words of 8 numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from actorlm.errors import ModelError

CHUNK = 32
"""Inputs that share 16 bytes."""
GROUPS = (32, 64, 128)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which output of a word's eight each half byte has, from the lowest."""


class Int4Weight(NamedTuple):
    """`packed_BN` is uint8, `scales_GN` any float type, `zeros_GN` uint8, or None where all zero points are 8."""

    packed_BN: Tensor
    scales_GN: Tensor
    zeros_GN: Tensor | None

    @property
    def size_k(self) -> int:
        """Inputs."""
        return 2 * len(self.packed_BN)

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.size_k // len(self.scales_GN)


def packed(numbers_KN: Tensor, scales_GN: Tensor, zeros_GN: Tensor | None) -> Int4Weight:
    """A weight of numbers 0 to 15 and zero points 0 to 16.

    A group of some other multiple of 32 inputs becomes several groups with the same scale.
    """
    size_k, groups = len(numbers_KN), len(scales_GN)
    if size_k % CHUNK or size_k % groups or size_k // groups % CHUNK:
        raise ModelError(
            f"4-bit weights of {size_k} inputs in {groups} groups cannot be used: a group must be a multiple of {CHUNK}"
        )
    group = size_k // groups
    size = next(size for size in reversed(GROUPS) if group % size == 0)
    low_CJN, high_CJN = numbers_KN.to(torch.uint8).unflatten(0, (-1, 2, CHUNK // 2)).unbind(1)
    if zeros_GN is not None:
        zeros_GN = None if bool((zeros_GN == 8).all()) else _spread(zeros_GN.to(torch.uint8), group // size)
    return Int4Weight((low_CJN | (high_CJN << 4)).flatten(0, 1), _spread(scales_GN, group // size), zeros_GN)


def _spread(x_GN: Tensor, times: int) -> Tensor:
    return x_GN.repeat_interleave(times, 0).contiguous()


def dequantized(weight: Int4Weight) -> Tensor:
    """The weight [N, K] in float32."""
    bytes_CJN = weight.packed_BN.unflatten(0, (-1, CHUNK // 2))
    numbers_KN = torch.stack((bytes_CJN & 15, bytes_CJN >> 4), 1).flatten(0, 2)
    zeros_GN = torch.full_like(weight.scales_GN, 8) if weight.zeros_GN is None else weight.zeros_GN
    zeros_KN = zeros_GN.repeat_interleave(weight.group, 0)
    return ((numbers_KN.float() - zeros_KN) * weight.scales_GN.float().repeat_interleave(weight.group, 0)).T


def from_awq(qweight_KW: Tensor, qzeros_GW: Tensor, scales_GN: Tensor) -> Int4Weight:
    """A weight of AutoAWQ's GEMM layout: words of eight outputs, interleaved."""
    places = [AWQ_ORDER.index(output) for output in range(8)]
    numbers_KN = _halves(qweight_KW)[:, :, places].flatten(1)
    return packed(numbers_KN, scales_GN, _halves(qzeros_GW)[:, :, places].flatten(1))


def from_gptq(
    qweight_WN: Tensor, qzeros_GW: Tensor, scales_GN: Tensor, g_idx_K: Tensor | None, *, minus_one: bool
) -> Int4Weight:
    """A weight of GPTQ's layout: words of eight inputs. `minus_one` says that zero points are stored less one.

    That is so in the checkpoint format `gptq`, and not in `gptq_v2`. Inputs of a group must follow each other.
    """
    numbers_KN = _halves(qweight_WN).movedim(2, 1).flatten(0, 1)
    if g_idx_K is not None:
        _check_order("g_idx", g_idx_K, len(scales_GN))
    return packed(numbers_KN, scales_GN, _halves(qzeros_GW).flatten(1) + int(minus_one))


def from_compressed_tensors(
    weight_packed_NW: Tensor,
    weight_scale_NG: Tensor,
    weight_zero_point_WG: Tensor | None,
    weight_g_idx_K: Tensor | None = None,
) -> Int4Weight:
    """A weight of compressed-tensors' format `pack-quantized`: words of eight inputs, zero points of eight outputs.

    Numbers and zero points are signed there and stored plus 8. Inputs of a group must follow each other.
    """
    if weight_g_idx_K is not None:
        _check_order("weight_g_idx", weight_g_idx_K, weight_scale_NG.shape[1])
    numbers_KN = _halves(weight_packed_NW).flatten(1).T
    zeros_GN = None
    if weight_zero_point_WG is not None:
        zeros_GN = _halves(weight_zero_point_WG).movedim(2, 1).flatten(0, 1).T[:, : len(weight_scale_NG)]
    return packed(numbers_KN, weight_scale_NG.T, zeros_GN)


def _halves(words: Tensor) -> Tensor:
    """The eight numbers of each int32, from the lowest, in a new last dimension."""
    assert words.dtype is torch.int32, "4-bit numbers are packed in int32"
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return (words[..., None] >> shifts) & 15


def _check_order(name: str, groups_K: Tensor, num_groups: int) -> None:
    size_k = len(groups_K)
    in_order_K = torch.arange(size_k, device=groups_K.device) // max(1, size_k // num_groups)
    if not torch.equal(groups_K.long(), in_order_K):
        raise ModelError(
            f"{name} puts inputs out of order (quantized with desc_act or actorder 'group'), which is not supported: "
            "take a checkpoint that was quantized without it"
        )
