"""Tokens a second of `execution.Runner` and of transformers' `generate`, on the same float32 weights in one process.

    python benchmarks/offline_vs_transformers.py MODEL [--threads 2] [--rounds 5]

MODEL is a .gguf file or a directory with safetensors. Both generate greedily, ignoring eos, from random prompts. Runs
of the two are interleaved, and each ratio is that of one pair, so that other load on the machine hits both. Prints each
pair, then medians.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.resolve import resolve
from actorlm.config import BLOCK_SIZE
from actorlm.execution.runner import Runner
from actorlm.kernels.linear import PackedRows
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.models.llama import Llama
from actorlm.models.weights import Parameter
from actorlm.sampling import SamplingParams
from actorlm.wire import int32

MAX_MODEL_LEN = 2048
WORKLOADS = (("1 stream, 16 in, 128 out", 1, 16, 128), ("32 at once, 128 in, 64 out", 32, 128, 64))
"""(name, requests, prompt tokens, generated tokens)."""

Prompts = Sequence[Sequence[int]]


def transformers_model(description: ModelDescription, llama: Llama) -> LlamaForCausalLM:
    """The same model in transformers, with its own copy of the weights."""
    config = LlamaConfig(
        vocab_size=description.vocab_size,
        hidden_size=description.hidden_size,
        intermediate_size=description.intermediate_size,
        num_hidden_layers=description.num_layers,
        num_attention_heads=description.num_heads,
        num_key_value_heads=description.num_kv_heads,
        head_dim=description.head_dim,
        max_position_embeddings=description.max_model_len,
        rms_norm_eps=description.rms_norm_eps,
        rope_parameters=_rope_parameters(description),
        tie_word_embeddings=description.tie_word_embeddings,
        attention_bias=description.attention_bias,
        mlp_bias=description.mlp_bias,
        bos_token_id=description.bos_token_id,
        eos_token_id=None,
        pad_token_id=0,
    )
    weights = {parameter.name: _as_in_checkpoint(parameter) for parameter in llama.parameters("safetensors")}
    if description.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(weights, strict=True)
    return model


def _as_in_checkpoint(parameter: Parameter) -> torch.Tensor:
    """Undoes the order that `Parameter` describes."""
    destination, heads = parameter.destination, parameter.halved_heads
    rows = destination.read() if isinstance(destination, PackedRows) else destination
    return rows if heads is None else rows.view(-1, heads // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _rope_parameters(description: ModelDescription) -> dict[str, object]:
    scaling = description.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": description.rope_theta}
    return {
        "rope_type": "llama3",
        "rope_theta": description.rope_theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }


def generate_ours(runner: Runner, prompts: Prompts, count: int, budget: int) -> list[list[int]]:
    """Greedy ids of each prompt: prompts in steps of at most `budget` tokens, then all rows in every step."""
    sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    blocks = -(-(len(prompts[0]) + count) // BLOCK_SIZE)
    slots = list(range(len(prompts)))
    generated: list[list[int]] = [[] for _ in slots]
    per_step = max(budget // len(prompts[0]), 1)
    for begin in range(0, len(slots), per_step):
        some = slots[begin : begin + per_step]
        added = tuple(AddRequest(slot, int32(prompts[slot]), len(prompts[slot]), sampling) for slot in some)
        _step(runner, generated, some, 0, len(prompts[0]), added=added, blocks=blocks)
    for index in range(count - 1):
        _step(runner, generated, slots, len(prompts[0]) + index, 1)
    runner.execute(RunStep(0, int32(slots), (), b"", b"", b"", b"", b"", b""))
    return generated


def _step(
    runner: Runner,
    generated: list[list[int]],
    slots: list[int],
    start: int,
    count: int,
    *,
    added: tuple[AddRequest, ...] = (),
    blocks: int = 0,
) -> None:
    rows = len(slots)
    step = RunStep(
        step=0,
        released=b"",
        added=added,
        block_slots=int32(slot for slot in slots for _ in range(blocks)),
        block_ids=int32(slot * blocks + i for slot in slots for i in range(blocks)),
        slots=int32(slots),
        starts=int32([start] * rows),
        counts=int32([count] * rows),
        sampled=int32(range(rows)),
    )
    tokens = memoryview(runner.execute(step).tokens).cast("i")
    for slot, token in zip(slots, tokens, strict=True):
        generated[slot].append(token)


def generate_transformers(model: LlamaForCausalLM, prompts: Prompts, count: int) -> list[list[int]]:
    """Greedy ids of each prompt, as one static batch. All prompts are of one length."""
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
    generated: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return generated


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Prints what the head of this file says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", choices=("auto", "native", "torch"), default="auto")
    parser.add_argument("--budget", type=int, default=2048, help="tokens of one prefill step")
    options = parser.parse_args()
    description = describe(resolve(options.model, null=False, progress=lambda *_: None))
    runner = Runner(
        description,
        dtype="float32",
        kernels=options.kernels,
        num_blocks=32 * 192 // BLOCK_SIZE,
        max_num_seqs=32,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=options.budget,
        threads=options.threads,
    )
    runner.load(lambda *_: None)
    runner.warm_up()
    peer = transformers_model(description, runner.model)
    source = random.Random(0)
    for name, requests, size, count in WORKLOADS:
        prompts = [[source.randrange(3, description.vocab_size) for _ in range(size)] for _ in range(requests)]
        pairs = [_pair(runner, peer, prompts, count, options.budget) for _ in range(options.rounds)]
        report(name, pairs)


def _pair(runner: Runner, peer: LlamaForCausalLM, prompts: Prompts, count: int, budget: int) -> tuple[float, float]:
    tokens = len(prompts) * count
    ours = tokens / seconds(lambda: generate_ours(runner, prompts, count, budget))
    return ours, tokens / seconds(lambda: generate_transformers(peer, prompts, count))


def report(name: str, pairs: Sequence[tuple[float, float]]) -> None:
    """Prints the rates (tokens/s) of all pairs of one workload, and the medians."""
    ratios = [ours / theirs for ours, theirs in pairs]
    for (ours, theirs), ratio in zip(pairs, ratios, strict=True):
        print(f"{name}: {ours:.1f} and {theirs:.1f} tokens/s, {ratio:.2f} times")
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{name}, medians: {ours:.1f} and transformers {theirs:.1f} tokens/s, {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
