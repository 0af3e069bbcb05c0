"""One device's work on one step: slots, tensors, model, sampler.

Owns the weights, the KV cache and the state of the slots. Receives RunStep, gives StepDone. Knows no socket and no
scheduler: it does what the plan says, or raises.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.errors import ConfigError
from actorlm.execution.attention_plan import CacheShape, plan_attention
from actorlm.execution.batch import Batch, Slots
from actorlm.execution.kv_cache import allocate, check_memory
from actorlm.execution.sampler import NO_IDS, Sampler
from actorlm.execution.scoring import Scoring
from actorlm.execution.tile_plan import plan_tiles
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.native import Native, choose_level
from actorlm.kernels.paged_attention import AttentionPlan, TilePlan
from actorlm.layers.attention import StepInputs
from actorlm.logprobs import Logprobs
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.models.registry import model_class
from actorlm.models.weights import load_weights
from actorlm.sampling import SamplingParams
from actorlm.wire import int32

DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""auto is float32: CPUs compute 16-bit types slower, unless they have hardware for it."""


class Runner:
    """Runs a model on this process's CPU. `load` comes first.

    `num_blocks` blocks of 16 tokens make the KV cache; at most `max_num_seqs` slots are in use, `max_model_len` tokens
    long, and a step has at most `max_num_batched_tokens` tokens. `kernels` is native, torch, or auto for native where
    there are some. `threads` are those of either in this process; None stands for torch's own number.
    """

    def __init__(
        self,
        model: ModelDescription,
        *,
        dtype: str,
        kernels: str,
        num_blocks: int,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        threads: int | None,
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"dtype is {dtype}; it must be one of {', '.join(DTYPES)}", param="dtype")
        self.description = model
        self._dtype = DTYPES[dtype]
        level = choose_level(kernels)
        self._native = None if level is None else Native(level, threads or torch.get_num_threads())
        self._num_blocks = num_blocks
        self._threads = threads
        self._slots = Slots(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            num_blocks=num_blocks,
            vocab_size=model.vocab_size,
        )
        self._sampler = Sampler(max_num_seqs, model.eos_token_ids, self._native)
        self._scoring = Scoring(max_num_seqs)
        self._cache_shape = CacheShape(num_blocks, model.num_kv_heads, model.head_dim, self._dtype)
        self._caches: list[LayerCache] = []

    def load(self, progress: Callable[[int, int], None]) -> None:
        """Allocates the cache and loads the weights; `progress` gets bytes done and in total.

        Raises InsufficientMemory, or ModelError if the checkpoint cannot be used.
        """
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        build = model_class(self.description.architecture)
        check_memory(self.description, self._num_blocks, self._dtype, psutil.virtual_memory().available)
        self._caches = allocate(self.description, self._num_blocks, self._dtype)
        self.model = build(self.description, self._dtype, self._native)
        load_weights(self.description, self.model.parameters(self.description.format), progress)

    def warm_up(self) -> None:
        """Runs one real step of one token in slot 0 and block 0, which must be free, and frees them again."""
        request = AddRequest(0, int32([0]), 1, SamplingParams(max_tokens=1, temperature=0.0))
        zero, one, none = int32([0]), int32([1]), b""
        self.execute(RunStep(0, none, (request,), zero, zero, zero, zero, one, zero))
        self.execute(RunStep(0, zero, (), none, none, none, none, none, none))

    @torch.inference_mode()
    def execute(self, step: RunStep) -> StepDone:
        """Computes one step. Raises ProtocolError for a plan that contradicts the slots, before any tensor changes."""
        began = time.perf_counter_ns()
        batch = self._slots.apply(step)
        for request in step.added:
            ids = np.frombuffer(request.token_ids, np.int32)
            prompt, generated = ids[: request.prompt_length], ids[request.prompt_length :]
            self._sampler.put(request.slot, request.sampling, prompt, generated)
            self._scoring.put(request.slot, request.sampling, len(prompt), len(generated))
        tokens, logprobs = self._compute(batch) if len(batch.slots) > 0 else (NO_IDS, None)
        return StepDone(step.step, tokens.tobytes(), time.perf_counter_ns() - began, logprobs)

    def logits(self, batch: Batch) -> torch.Tensor:
        """float32 logits [S, V] of the batch's sampled rows; the cache gains its tokens."""
        logits: torch.Tensor = self.model(self._inputs(batch), self._caches)
        return logits

    def _compute(self, batch: Batch) -> tuple[NDArray[np.int32], Logprobs | None]:
        parts = self._scoring.prompt_parts(batch, self._slots.tokens)
        if parts:
            wanted = np.concatenate([batch.sampled_tokens, *(part.tokens for part in parts)])
            batch = replace(batch, sampled_tokens=wanted)
        logits = self.logits(batch)
        logits_SV, logits_NV = logits[: len(batch.sampled_slots)], logits[len(batch.sampled_slots) :]
        raw, tokens = self._scoring.raw(logits_SV, batch), NO_IDS
        if len(batch.sampled_slots) > 0:
            tokens = self._sampler.sample(logits_SV, batch.sampled_slots, batch.sampled_positions, batch.generated)
            self._slots.append(batch.sampled_slots, tokens)
        return tokens, self._scoring.score(batch, raw, tokens, parts, logits_NV)

    def _inputs(self, batch: Batch) -> StepInputs:
        shape = self._cache_shape
        return StepInputs(
            token_ids_T=torch.from_numpy(batch.token_ids),
            positions_T=torch.from_numpy(batch.positions),
            places_T2k=torch.from_numpy(_places(batch, shape)),
            plan=self._plan(batch),
            sampled_S=torch.from_numpy(batch.sampled_tokens),
        )

    def _plan(self, batch: Batch) -> AttentionPlan | TilePlan:
        tables = self._slots.tables.values[batch.slots]
        if self._native is None:
            return plan_attention(batch.starts, batch.counts, tables, self._cache_shape)
        model = self.description
        return plan_tiles(batch.starts, batch.counts, tables, model.num_heads, model.num_kv_heads, self._native)


def _places(batch: Batch, shape: CacheShape) -> NDArray[np.int64]:
    """[T, 2 k]: which vector of the cache each token's key heads go to, then its value heads."""
    heads = batch.blocks[:, None] * shape.num_kv_heads + np.arange(shape.num_kv_heads)
    keys = heads * BLOCK_SIZE + (batch.positions % BLOCK_SIZE)[:, None]
    return np.concatenate((keys, keys + shape.num_blocks * shape.num_kv_heads * BLOCK_SIZE), axis=1)
