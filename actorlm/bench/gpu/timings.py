"""How long attention and products take, beside torch's own and beside the bandwidth that a copy reaches."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from actorlm.bench.gpu.clock import Spread
from actorlm.bench.gpu.stage import Machine, Row
from actorlm.bench.gpu.tensors import sequences_of

Case = tuple[str, Callable[[], Row]]

COPIED_BYTES = 1 << 30
MOST_CACHE_BYTES = 8 << 30
"""A case whose cache would be larger is left out, and says so."""


def copy_bandwidth(machine: Machine) -> float:
    """GB/s, read and written."""
    count = COPIED_BYTES if machine.device.type == "cuda" else 1 << 20
    source = torch.empty(count, dtype=torch.uint8, device=machine.device)
    target = torch.empty_like(source)
    return 2 * count / machine.clock(lambda: target.copy_(source)).median / 1e9


def attention(machine: Machine) -> Iterator[Case]:
    """Decoding and prefill of one layer."""
    bandwidth = copy_bandwidth(machine)
    yield "copy", lambda: {"gb_per_s": bandwidth}
    sizes = machine.sizes
    for batch in sizes.batches:
        for context in sizes.contexts:
            cache_bytes = 2 * batch * context * sizes.kv_heads * sizes.head_dim * sizes.dtype.itemsize
            act = partial(_decode, machine, batch, context, cache_bytes, bandwidth)
            yield f"decode, batch {batch}, context {context}", act
    for tokens in sizes.prompts:
        yield f"prefill, {tokens} tokens", partial(_prefill, machine, tokens)


def _decode(machine: Machine, batch: int, context: int, cache_bytes: int, bandwidth: float) -> Row:
    from actorlm.kernels.gpu import attention, merge_splits, split_attention  # noqa: PLC0415
    from actorlm.kernels.gpu.tiles import tile  # noqa: PLC0415

    sizes = machine.sizes
    if cache_bytes > MOST_CACHE_BYTES:
        return {"left_out": f"its cache takes {cache_bytes / 2**30:.0f} GiB"}
    cache, sequences = sequences_of(machine, [context] * batch, [1] * batch)
    q = torch.randn(batch, sizes.heads, sizes.head_dim, device=machine.device).to(sizes.dtype)
    splits = merge_splits.num_splits(batch, sizes.kv_heads, machine.multiprocessors)
    partials = merge_splits.Partials.empty(batch, sizes.heads, splits, sizes.head_dim, machine.device)
    chosen, out = tile("decode", sizes.head_dim, q.itemsize, machine.card), torch.empty_like(q)
    softmax, tables = attention.Softmax(sizes.head_dim**-0.5), sequences.tables_SW
    lengths = sequences.lengths_S
    ours = machine.clock(
        lambda: split_attention.split_attention(q, cache, tables, lengths, softmax, chosen, partials, out)
    )
    theirs = _torch_attention(machine, batch, 1, context)
    reached = cache_bytes / ours.median / 1e9
    return _times(ours, theirs) | {"splits": splits, "gb_per_s": reached, "share_of_copy": reached / bandwidth}


def _prefill(machine: Machine, tokens: int) -> Row:
    from actorlm.kernels.gpu import attention, paged_attention  # noqa: PLC0415
    from actorlm.kernels.gpu.tiles import tile  # noqa: PLC0415

    sizes = machine.sizes
    cache, sequences = sequences_of(machine, [tokens], [tokens])
    q = torch.randn(tokens, sizes.heads, sizes.head_dim, device=machine.device).to(sizes.dtype)
    chosen, out = tile("prefill", sizes.head_dim, q.itemsize, machine.card), torch.empty_like(q)
    softmax = attention.Softmax(sizes.head_dim**-0.5)
    ours = machine.clock(lambda: paged_attention.paged_attention(q, cache, sequences, softmax, chosen, out))
    operations = 2 * tokens * tokens * sizes.heads * sizes.head_dim
    theirs = _torch_attention(machine, 1, tokens, tokens)
    return _times(ours, theirs) | {"tflop_per_s": operations / ours.median / 1e12}


def _torch_attention(machine: Machine, batch: int, queries: int, keys: int) -> Spread:
    """`scaled_dot_product_attention` of contiguous keys and values."""
    sizes = machine.sizes

    def tensor(heads: int, count: int) -> torch.Tensor:
        return torch.randn(batch, heads, count, sizes.head_dim, device=machine.device).to(sizes.dtype)

    q, k, v = tensor(sizes.heads, queries), tensor(sizes.kv_heads, keys), tensor(sizes.kv_heads, keys)
    return machine.clock(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=queries > 1, enable_gqa=True))


def _times(ours: Spread, theirs: Spread) -> Row:
    return {
        "us": ours.median * 1e6, "us_least": ours.least * 1e6, "us_most": ours.most * 1e6,
        "torch_us": theirs.median * 1e6, "ratio": ours.median / theirs.median,
    }  # fmt: skip


def products(machine: Machine) -> Iterator[Case]:
    """Of 8 bits, for some numbers of rows and the matrices of an MLP, beside torch's in the type of the model."""
    sizes = machine.sizes
    kinds = [torch.int8, torch.float8_e4m3fn] if machine.has_fp8 else [torch.int8]
    for dtype in kinds:
        for rows in (*sizes.batches, *sizes.prompts[:1]):
            yield f"{dtype}, {rows} rows".removeprefix("torch."), partial(_product, machine, rows, dtype)


def _product(machine: Machine, rows: int, dtype: torch.dtype) -> Row:
    from actorlm.kernels.gpu.quantize_rows import quantize_rows  # noqa: PLC0415
    from actorlm.kernels.gpu.scaled_matmul import scaled_matmul  # noqa: PLC0415

    sizes = machine.sizes
    x = torch.randn(rows, sizes.hidden, device=machine.device).to(sizes.dtype)
    w = torch.randn(sizes.intermediate, sizes.hidden, device=machine.device).to(sizes.dtype)
    a, b = quantize_rows(x, dtype), quantize_rows(w, dtype)
    ours, theirs = machine.clock(lambda: scaled_matmul(*a, *b, sizes.dtype)), machine.clock(lambda: x @ w.T)
    return _times(ours, theirs) | {"tflop_per_s": 2 * rows * w.numel() / ours.median / 1e12}
