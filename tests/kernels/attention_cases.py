"""Steps for attention: queries, a cache in which unused keys are no numbers, plans, and what is expected."""

import torch

from actorlm.kernels.attention_variant import PLAIN
from actorlm.kernels.layer_cache import LayerCache, quantised
from actorlm.kernels.paged_attention import TilePlan, paged_attention

ROWS = [(0, 1), (0, 40), (15, 1), (16, 17), (100, 3), (31, 1), (70, 1)]
"""Of keys before, and tokens."""


def native_case(rows, heads, kv_heads, size, dtype=torch.float32):
    """Queries for rows of (keys before, tokens), a cache, and tables. Scales of unused keys are no numbers, too."""
    torch.manual_seed(5)
    blocks = [-(-(before + tokens) // 16) for before, tokens in rows]
    order = torch.randperm(sum(blocks) + 2)
    kv = torch.full((2, len(order), kv_heads, 16, size), torch.nan)
    tables = torch.zeros(len(rows), max(blocks), dtype=torch.int32)
    for row, part in enumerate(order[: sum(blocks)].split(blocks)):
        tables[row, : len(part)] = part
        for place in range(sum(rows[row])):
            kv[:, part[place // 16], :, place % 16] = torch.randn(2, kv_heads, size)
    cache = LayerCache(*quantised(kv)) if dtype is torch.int8 else LayerCache(kv.to(dtype))
    return torch.randn(sum(tokens for _, tokens in rows), heads, size), cache, tables


def attend(q, cache, plan, *rest):
    """Attention to the cache, turned into the order of keys that the plan's kernel reads."""
    return paged_attention(q, cache.turned() if isinstance(plan, TilePlan) else cache, plan, *rest)


def tile_plan(native, rows, tables, most):
    """Each row alone, in tiles of at most so many tokens."""
    tiles, token = [], 0
    for row, (before, tokens) in enumerate(rows):
        tiles += [[row, token + i, before + i, min(most, tokens - i)] for i in range(0, tokens, most)]
        token += tokens
    alone = [[tile, 1, 0] for tile in range(len(tiles))]
    return TilePlan(native, tables, columns(tiles), columns(alone))


def columns(lists):
    """[X, N] of N lists of X numbers."""
    return torch.tensor(lists, dtype=torch.int32).t().contiguous()


def numbers(cache):
    """What the cache stands for, [2, block, kv_head, 16, head_dim] in float64."""
    wide = cache.all_2bk16H.double()
    return wide if cache.scales_2bk16 is None else wide * cache.scales_2bk16.unsqueeze(-1)


def one_by_one(q, cache, tables, rows, variant=PLAIN):
    """float64, token by token."""
    outputs, token, group, kv = [], 0, q.shape[1] // cache.num_kv_heads, numbers(cache)
    for row, (before, tokens) in enumerate(rows):
        for position in range(before, before + tokens):
            first = 0 if variant.window is None else max(0, position + 1 - variant.window)
            places = [(int(tables[row, i // 16]), i % 16) for i in range(first, position + 1)]
            keys, values = (torch.stack([part[b, :, i] for b, i in places]) for part in kv)
            scores = torch.einsum("khd,hgd->hgk", keys, q[token].double().view(-1, group, q.shape[2]))
            weights = _weights(scores, variant, q.shape[2])
            outputs.append(torch.einsum("hgk,khd->hgd", weights, values).reshape(-1))
            token += 1
    return torch.stack(outputs)


def _weights(products, variant, size):
    scores = products * (size**-0.5 if variant.scale is None else variant.scale)
    if variant.soft_cap is not None:
        scores = variant.soft_cap * torch.tanh(scores / variant.soft_cap)
    exponentials = scores.exp()
    total = exponentials.sum(-1, keepdim=True)
    if variant.sinks_n is not None:
        total = total + variant.sinks_n.double().exp().view(*total.shape)
    return exponentials / total
