"""Drives a Runner with hand-made steps, as a scheduler would; and makes tiny random Llama models on disk."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actorlm.checkpoint.description import ModelDescription, RopeScaling
from actorlm.config import BLOCK_SIZE
from actorlm.execution.null import NullRunner
from actorlm.execution.runner import Runner
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.sampling import SamplingParams
from actorlm.wire import int32, read_int32

GREEDY = SamplingParams(max_tokens=1000, temperature=0.0)


class Driver:
    """Keeps what a scheduler keeps: known ids, computed tokens and blocks of each slot; blocks come in random order."""

    def __init__(self, runner: Runner | NullRunner, num_blocks: int, *, shuffle: int | None = None) -> None:
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
