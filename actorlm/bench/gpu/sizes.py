"""The shapes that are measured: those of an 8B model, and small ones for tests without a GPU."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Sizes:
    """Features, heads and tokens."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    experts: int
    latent: int
    latent_rope: int
    dtype: torch.dtype


LARGE = Sizes(
    hidden=4096, intermediate=14_336, heads=32, kv_heads=8, head_dim=128, layers=32, vocab=128_256,
    batches=(1, 64, 256), contexts=(1024, 8192, 32_768), prompts=(2048, 8192), experts=64, latent=512, latent_rope=64,
    dtype=torch.bfloat16,
)  # fmt: skip
SMALL = Sizes(
    hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, layers=2, vocab=300, batches=(1, 3), contexts=(20,),
    prompts=(18,), experts=4, latent=512, latent_rope=64, dtype=torch.float32,
)  # fmt: skip
