"""Random tensors in the block types of GGUF files, as bytes and as the numbers that gguf itself makes of them."""

import gguf
import numpy as np
import torch

SCALES = {"Q4_K": slice(0, 4), "Q6_K": slice(208, 210)}
"""Where blocks that gguf does not make have their half floats; every other byte is good for any value."""


def gguf_tensor(kind, rows, columns, seed=0):
    """Bytes [rows, X], and float32 [rows, columns]."""
    random = torch.Generator().manual_seed(seed)
    form = gguf.GGMLQuantizationType[kind]
    if kind not in SCALES:
        packed = gguf.quants.quantize(torch.randn(rows, columns, generator=random).numpy(), form)
    else:
        size, block_bytes = gguf.GGML_QUANT_SIZES[form]
        shape = rows, columns // size, block_bytes
        blocks = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8).numpy()
        halves = (torch.rand(rows, columns // size, 2, generator=random) * 0.01).half().numpy()
        place = SCALES[kind]
        blocks[..., place] = halves.view(np.uint8)[..., : place.stop - place.start]
        packed = blocks.reshape(rows, -1)
    return torch.from_numpy(packed), torch.from_numpy(gguf.quants.dequantize(packed, form))
