"""Kernels against their references in plain torch, on the device: the largest error, beside the largest number."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from actorlm.bench.gpu.stage import Machine, Row
from actorlm.bench.gpu.tensors import paged_cache, sequences_of

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
TOLERANCE_8_BIT = 2e-2

Case = tuple[str, Callable[[], Row]]


def cases(machine: Machine) -> Iterator[Case]:
    """Those that the device has types for."""
    yield from _rows(machine)
    yield from _attention(machine)
    yield from _products(machine)


def compared(made: Tensor, expected: Tensor, tolerance: float) -> Row:
    """The error. Raises AssertionError if it is too large, or something is not finite."""
    made, expected = made.double().cpu(), expected.double().cpu()
    error = float((made - expected).abs().max() / expected.abs().max().clamp(min=1e-9))
    assert made.isfinite().all(), "a result is not finite"
    assert error <= tolerance, f"the error is {error:.3g} of the largest number; {tolerance:.3g} is allowed"
    return {"relative_error": error, "allowed": tolerance}


def worst(*rows: Row) -> Row:
    """Of several comparisons of one case."""
    return max(rows, key=lambda row: float(row["relative_error"]))


def _random(machine: Machine, *shape: int) -> Tensor:
    return torch.randn(shape, device=machine.device).to(machine.sizes.dtype)


def _rows(machine: Machine) -> Iterator[Case]:
    sizes, rows, tolerance = machine.sizes, 17, TOLERANCE[machine.sizes.dtype]

    def norm() -> Row:
        from actorlm.kernels.gpu import add_rms_norm as module  # noqa: PLC0415 - a kernel that fails is one case

        x, residual, weight = (_random(machine, *shape) for shape in ((rows, sizes.hidden),) * 2 + ((sizes.hidden,),))
        expected_residual = residual.clone()
        expected = module.reference(x, expected_residual, weight, 1e-5)
        made = module.add_rms_norm(x, residual, weight, 1e-5)
        return worst(compared(made, expected, tolerance), compared(residual, expected_residual, tolerance))

    def gate() -> Row:
        from actorlm.kernels.gpu import silu_mul as module  # noqa: PLC0415

        x = _random(machine, rows, 2 * sizes.intermediate)
        return compared(module.silu_mul(x), module.reference(x), tolerance)

    def rotation() -> Row:
        from actorlm.kernels.gpu import rope_and_store as module  # noqa: PLC0415

        heads = _random(machine, rows, sizes.heads + 2 * sizes.kv_heads, sizes.head_dim)
        angles = torch.rand(rows, sizes.head_dim // 2, device=machine.device) * 6
        rotation = torch.polar(torch.ones_like(angles), angles)
        made, expected = (paged_cache(machine, 4, empty=True) for _ in range(2))
        places = torch.randperm(64, device=machine.device)[:rows].int()
        turned = heads.clone()
        module.reference(turned, rotation, expected, places)
        module.rope_and_store(heads, rotation, made, places)
        return worst(compared(heads, turned, tolerance), compared(made.kv_2bk16H, expected.kv_2bk16H, tolerance))

    yield "add + RMSNorm", norm
    yield "silu(gate) * up", gate
    yield "rotation and storing", rotation


def _attention(machine: Machine) -> Iterator[Case]:
    sizes, tolerance = machine.sizes, TOLERANCE[machine.sizes.dtype]

    def attention(name: str) -> Row:
        from actorlm.kernels.gpu import attention, merge_splits, paged_attention, split_attention  # noqa: PLC0415
        from actorlm.kernels.gpu.tiles import tile  # noqa: PLC0415

        counts = [1, 1, 1] if name == "decode" else [5, 1, 18]
        cache, sequences = sequences_of(machine, [40, 17, 18], counts)
        q = _random(machine, sum(counts), sizes.heads, sizes.head_dim)
        softmax = attention.Softmax(sizes.head_dim**-0.5, soft_cap=20.0, window=21)
        chosen = tile(name, sizes.head_dim, q.itemsize, machine.card)
        if name == "prefill":
            made = paged_attention.paged_attention(q, cache, sequences, softmax, chosen)
        else:
            partials = merge_splits.Partials.empty(3, sizes.heads, 2, sizes.head_dim, machine.device)
            tables, lengths = sequences.tables_SW, sequences.lengths_S
            made = split_attention.split_attention(q, cache, tables, lengths, softmax, chosen, partials)
        return compared(made, attention.reference(q, cache, sequences, softmax), tolerance)

    def latent() -> Row:
        from actorlm.kernels.gpu import latent_attention as module  # noqa: PLC0415
        from actorlm.kernels.gpu.merge_splits import Partials  # noqa: PLC0415
        from actorlm.kernels.gpu.tiles import tile  # noqa: PLC0415

        whole = sizes.latent + sizes.latent_rope
        cache = module.LatentCache(_random(machine, 4, 16, whole), sizes.latent)
        tables = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=machine.device)
        lengths = torch.tensor([30, 7], dtype=torch.int32, device=machine.device)
        q, partials = _random(machine, 2, 16, whole), Partials.empty(2, 16, 2, sizes.latent, machine.device)
        chosen = tile("latent", sizes.latent, q.itemsize, machine.card)
        made = module.latent_attention(q, cache, tables, lengths, whole**-0.5, chosen, partials)
        return compared(made, module.reference(q, cache, tables, lengths, whole**-0.5), tolerance)

    yield "attention, prefill", lambda: attention("prefill")
    yield "attention, decode", lambda: attention("decode")
    yield "latent attention, decode", latent


def _products(machine: Machine) -> Iterator[Case]:
    sizes, rows, tolerance = machine.sizes, 17, TOLERANCE[machine.sizes.dtype]

    def scaled(dtype: torch.dtype) -> Row:
        from actorlm.kernels.gpu import scaled_matmul as module  # noqa: PLC0415
        from actorlm.kernels.gpu.quantize_rows import quantize_rows  # noqa: PLC0415

        a, b = (quantize_rows(_random(machine, count, sizes.hidden), dtype) for count in (rows, sizes.hidden))
        made = module.scaled_matmul(*a, *b, sizes.dtype)
        return compared(made, module.reference(*a, *b, sizes.dtype), tolerance)

    def experts() -> Row:
        from actorlm.kernels.gpu import experts as module  # noqa: PLC0415

        x = _random(machine, rows, sizes.hidden)
        gate_up = _random(machine, sizes.experts, 2 * sizes.intermediate, sizes.hidden) / sizes.hidden**0.5
        down = _random(machine, sizes.experts, sizes.hidden, sizes.intermediate) / sizes.intermediate**0.5
        ids = torch.stack([torch.randperm(sizes.experts, device=machine.device)[:2] for _ in range(rows)]).int()
        weights = torch.rand(rows, 2, device=machine.device)
        made = module.experts(x, gate_up, down, weights, ids)
        return compared(made, module.reference(x, gate_up, down, weights, ids), TOLERANCE_8_BIT)

    def greedy() -> Row:
        from actorlm.kernels.gpu import choose_tokens as module  # noqa: PLC0415

        logits = torch.randn(rows, sizes.vocab, device=machine.device)
        slots = torch.arange(rows, dtype=torch.int32, device=machine.device)
        tokens, best = slots.clone(), torch.empty(rows, device=machine.device)
        draws = module.Draws.greedy(rows, str(machine.device))
        module.choose_tokens(logits, slots, slots.long(), draws, tokens, best)
        assert torch.equal(tokens.long(), logits.argmax(-1)), "the tokens are not the most probable ones"
        return {"rows": rows}

    yield "scaled product, int8", lambda: scaled(torch.int8)
    if machine.has_fp8:
        yield "scaled product, fp8", lambda: scaled(torch.float8_e4m3fn)
    yield "experts", experts
    yield "greedy choice", greedy
