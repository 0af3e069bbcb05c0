"""Times the native kernels and plain torch on the shapes of SmolLM2-135M, in interleaved pairs.

    python benchmarks/kernels.py [--threads 2] [--rounds 15]

Prints medians, the native kernel's rate (GB/s of weights read, or GFLOP/s of multiply-adds), and how many
times as long torch takes.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from actorlm.config import BLOCK_SIZE
from actorlm.execution.attention_plan import CacheShape, plan_attention
from actorlm.execution.tile_plan import plan_tiles
from actorlm.kernels.choose_tokens import Draws, choose_tokens
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.linear import linear
from actorlm.kernels.native import Native, best_level
from actorlm.kernels.paged_attention import paged_attention
from actorlm.kernels.rms_norm import rms_norm
from actorlm.kernels.silu_mul import Gates, silu_mul
from actorlm.layers.arena import Arena

HIDDEN, INTERMEDIATE, VOCAB = 576, 1536, 49_152
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64

Work = Callable[[], object]


def linears(native: Native, rows: int, dtype: torch.dtype) -> tuple[Work, Work, float]:
    """The matrices of four layers and the head; torch's are float32. Gives both, and the bytes of ours."""
    shapes = [(960, HIDDEN), (HIDDEN, HIDDEN), (3072, HIDDEN), (HIDDEN, INTERMEDIATE)] * 4 + [(VOCAB, HIDDEN)]
    ours, theirs = Arena(dtype, native), Arena("float32")
    packed, plain = ([arena.matrix(*shape) for shape in shapes] for arena in (ours, theirs))
    inputs = {size: torch.randn(rows, size) for size in (HIDDEN, INTERMEDIATE)}
    outputs = {size: torch.empty(rows, size) for size in {out for out, _ in shapes}}

    def work(matrices: list) -> Work:
        calls = [(outputs[out], inputs[size], matrix) for (out, size), matrix in zip(shapes, matrices, strict=True)]
        return lambda: [linear(*call) for call in calls]

    return work(packed), work(plain), sum(out * size for out, size in shapes) * dtype.itemsize


def attention(native: Native, rows: int, before: int, tokens: int) -> tuple[Work, Work, float]:
    """One layer, for `rows` rows of `tokens` tokens after `before` others. Gives both, and the multiply-adds."""
    blocks = -(-(before + tokens) // BLOCK_SIZE)
    cache = LayerCache(torch.randn(2, rows * blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM))
    tables = np.random.default_rng(0).permutation(rows * blocks).astype(np.int32).reshape(rows, blocks)
    starts, counts = np.full(rows, before), np.full(rows, tokens)
    turned = cache.turned()
    tiles = plan_tiles(starts, counts, tables, HEADS, KV_HEADS, native)
    pieces = plan_attention(starts, counts, tables, CacheShape(rows * blocks, KV_HEADS, HEAD_DIM, torch.float32))
    queries = torch.randn(rows * tokens, HEADS, HEAD_DIM)
    seen = rows * sum(range(before + 1, before + tokens + 1))
    work = seen * HEADS * HEAD_DIM * 4
    return lambda: paged_attention(queries, turned, tiles), lambda: paged_attention(queries, cache, pieces), work


def small(native: Native, rows: int) -> tuple[Work, Work]:
    """The norms and gates of a layer."""
    x, weight = torch.randn(rows, HIDDEN), torch.randn(HIDDEN)
    gates = [Gates.make(rows, INTERMEDIATE, torch.float32, each) for each in (native, None)]
    for one in gates:
        one.flat_TX.normal_()

    def work(one: Gates) -> Work:
        return lambda: (rms_norm(x, weight, 1e-5, one.backend), silu_mul(one), rms_norm(x, weight, 1e-5, one.backend))

    return work(gates[0]), work(gates[1])


def sampling(native: Native, rows: int, *, temperature: float, top_p: float) -> tuple[Work, Work]:
    """The choice of a token for each row."""
    logits = torch.randn(rows, VOCAB) * 4
    draws = Draws(
        temperature=np.full(rows, temperature),
        min_p=np.zeros(rows),
        top_p=np.full(rows, top_p),
        top_k=np.zeros(rows, np.int64),
        words=np.random.default_rng(0).integers(0, 2**64, rows, np.uint64),
    )
    return lambda: choose_tokens(logits, draws, native), lambda: choose_tokens(logits, draws)


def compare(name: str, pair: tuple[Work, Work], rounds: int, amount: float = 0.0, unit: str = "") -> None:
    """Prints one line."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for work, times in zip(pair, seconds, strict=True):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    ours, theirs = (statistics.median(times[1:]) for times in seconds)
    ratio = statistics.median(
        torch_s / native_s for native_s, torch_s in zip(*(times[1:] for times in seconds), strict=True)
    )
    rate = f"{amount / ours / 1e9:7.1f} {unit}" if amount else ""
    print(f"{name:<48} {ours * 1e3:8.2f} ms {rate:<16} torch {theirs * 1e3:8.2f} ms  {ratio:5.2f} times")


def main() -> None:
    """Prints what the head of this file says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    native = Native(best_level(), options.threads)
    torch.set_num_threads(options.threads)
    print(f"{native.level}, {options.threads} threads, medians of {options.rounds}")
    for dtype in (torch.float32, torch.float16):
        for rows in (1, 4, 8, 32, 128):
            *pair, size = linears(native, rows, dtype)
            name = f"linears in {str(dtype).removeprefix('torch.')} of {rows} rows"
            work, unit = (size, "GB/s") if rows == 1 else (size / dtype.itemsize * 2 * rows, "GFLOP/s")
            compare(name, (pair[0], pair[1]), options.rounds, work, unit)
    for rows, before, tokens in ((1, 128, 1), (1, 1024, 1), (8, 1024, 1), (32, 128, 1), (16, 0, 128), (1, 0, 1024)):
        *pair, work = attention(native, rows, before, tokens)
        compare(f"attention, {rows} x {tokens} after {before}", (pair[0], pair[1]), options.rounds, work, "GFLOP/s")
    for rows in (1, 32, 256):
        compare(f"norms and gates of {rows} rows", small(native, rows), options.rounds)
    for temperature, top_p in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.95)):
        pair = sampling(native, 32, temperature=temperature, top_p=top_p)
        compare(f"32 tokens, temperature {temperature}, top_p {top_p}", pair, options.rounds)


if __name__ == "__main__":
    main()
