"""Drives a Runner with hand-made steps, as a scheduler would; and makes tiny random models on disk."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.sampling import SamplingParams
from actorlm.wire import int32, read_int32

GREEDY = SamplingParams(max_tokens=1000, temperature=0.0)
VOCAB = 300
KERNELS = "torch"
"""Those of `make_runner`, unless a test says otherwise."""

WEIGHT_TYPES = {"token_embd": "Q8_0", "attn_v": "Q8_0", "ffn_gate": "Q4_1", "attn_output": "F16", "ffn_down": "F32"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped-tied": ("llama", {"num_key_value_heads": 2}),
    "untied": ("llama", {"num_key_value_heads": 8, "tie_word_embeddings": False}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16, "tie_word_embeddings": False}),
    "llama3-rope": (
        "llama",
        {
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3-biases": ("qwen3", {"num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": False}),
}
"""What tiny models are made of: a family, and what differs from its own in `tiny_models`."""


class Driver:
    """Keeps what a scheduler keeps: known ids, computed tokens and blocks of each slot; blocks come in random order."""

    def __init__(self, runner: Any, num_blocks: int, *, shuffle: int | None = None) -> None:
        self.runner = runner
        self.free = list(range(num_blocks))
        if shuffle is not None:
            random.Random(shuffle).shuffle(self.free)
        self.ids: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.blocks: dict[int, list[int]] = {}
        self.added: list[AddRequest] = []
        self.released: list[int] = []
        self.number = 0

    def add(self, slot: int, ids: Sequence[int], sampling: SamplingParams = GREEDY, prompt_length: int | None = None):
        self.added.append(AddRequest(slot, int32(ids), prompt_length or len(ids), sampling))
        self.ids[slot], self.computed[slot], self.blocks[slot] = list(ids), 0, []

    def release(self, slot: int) -> list[int]:
        self.released.append(slot)
        self.free.extend(self.blocks.pop(slot))
        del self.computed[slot]
        return self.ids.pop(slot)

    def plan(self, rows: Sequence[tuple[int, int]]) -> RunStep:
        """The next step, which computes `count` tokens of each (slot, count); rows that reach the end are sampled."""
        grown = [(slot, self.free.pop()) for slot, count in rows for _ in range(self._missing(slot, count))]
        for slot, block in grown:
            self.blocks[slot].append(block)
        starts = [self.computed[slot] for slot, _ in rows]
        for slot, count in rows:
            self.computed[slot] += count
        sampled = [i for i, (slot, _) in enumerate(rows) if self.computed[slot] == len(self.ids[slot])]
        step = RunStep(
            step=self.number,
            released=int32(self.released),
            added=tuple(self.added),
            block_slots=int32(slot for slot, _ in grown),
            block_ids=int32(block for _, block in grown),
            slots=int32(slot for slot, _ in rows),
            starts=int32(starts),
            counts=int32(count for _, count in rows),
            sampled=int32(sampled),
        )
        self.added, self.released, self.number = [], [], self.number + 1
        return step

    def _missing(self, slot: int, count: int) -> int:
        return -(-(self.computed[slot] + count) // BLOCK_SIZE) - len(self.blocks[slot])

    def step(self, rows: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Runs the step; gives the token of each slot that got one."""
        plan = self.plan(rows)
        done = self.runner.execute(plan)
        assert done.step == plan.step
        sampled = [rows[i][0] for i in read_int32(plan.sampled)]
        tokens = dict(zip(sampled, read_int32(done.tokens), strict=True))
        for slot, token in tokens.items():
            self.ids[slot].append(token)
        return tokens

    def left(self, slot: int) -> int:
        """Known tokens that are not computed."""
        return len(self.ids[slot]) - self.computed[slot]

    def generate(self, prompts: Sequence[Sequence[int]], count: int, *, chunk: int = 10_000) -> list[list[int]]:
        """`count` greedy tokens for each prompt, all in one batch, prompts in chunks; slots are free afterwards."""
        for slot, prompt in enumerate(prompts):
            self.add(slot, prompt)
        goal = {slot: len(prompt) + count for slot, prompt in enumerate(prompts)}
        while busy := [slot for slot in goal if len(self.ids[slot]) < goal[slot]]:
            self.step([(slot, min(chunk, self.left(slot))) for slot in busy])
        return [self.release(slot)[len(prompt) :] for slot, prompt in enumerate(prompts)]


def make_tiny(variant, directory, **more):
    from tiny_models import FAMILIES

    from actorlm.checkpoint.config_json import describe_directory

    family, changes = VARIANTS[variant]
    model = FAMILIES[family](directory, **{"num_hidden_layers": 3, **changes, **more})
    description = describe_directory(directory, variant, weights=True)
    return model, msgspec.structs.replace(description, num_parameters=0)


def weight_type(name: str) -> str:
    """Of a GGUF file's matrices: several types in one layer, and within one matrix of it."""
    return next((kind for part, kind in WEIGHT_TYPES.items() if part in name), "Q4_0")


def make_runner(description: ModelDescription, **changes):
    runner = new_runner(description, **changes)
    runner.load(lambda done, total: None)
    return runner


def new_runner(description: ModelDescription, **changes):
    from actorlm.execution.runner import Runner

    sizes: dict[str, Any] = {
        "dtype": "float32",
        "kernels": KERNELS,
        "num_blocks": 128,
        "max_num_seqs": 16,
        "max_model_len": 512,
        "max_num_batched_tokens": 2048,
        "threads": 1,
    }
    return Runner(description, **{**sizes, **changes})


def step_logits(driver, rows):
    """Logits of every token of the step, cut by rows. Nothing is sampled."""
    return plan_logits(driver, driver.plan(rows), rows)


def plan_logits(driver, plan, rows):
    """The same of a plan made before."""
    import numpy as np
    import torch

    batch = driver.runner._slots.apply(plan)
    with torch.inference_mode():
        logits = driver.runner.logits(replace(batch, sampled_tokens=np.arange(len(batch.token_ids))))
    return logits.split([count for _, count in rows])


def random_prompts(seed: int, *lengths: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(1, VOCAB) for _ in range(length)] for length in lengths]
