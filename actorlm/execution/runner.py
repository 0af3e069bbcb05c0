"""One rank's work on one step: slots, tensors, model, next tokens.

Owns the weights, the KV cache and the state of the slots. Receives RunStep; the output rank gives StepDone. Knows no
socket and no scheduler: it does what the plan says, or raises. Ranks of one replica run the same steps in the same
order: tensor ranks share each layer, pipeline stages have some of the layers and pass on what they made.

Legend: T tokens of the step, S sampled rows, N positions of prompts that are scored, E hidden size, V vocabulary.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.errors import ConfigError
from actorlm.execution.attention_plan import CacheShape
from actorlm.execution.batch import Batch, Slots
from actorlm.execution.choice import Choice
from actorlm.execution.decode_graphs import DecodeGraphs, make_recorder
from actorlm.execution.kv_cache import allocate, check_memory, empty
from actorlm.execution.late_ids import LateIds
from actorlm.execution.sampler import NO_IDS
from actorlm.execution.scoring import PromptPart
from actorlm.execution.step_tensors import tensors_for
from actorlm.kernels.backend import Gpu, choose_backend, free_bytes
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.native import Native
from actorlm.layers.arena import FLOATS, Arena
from actorlm.logprobs import Logprobs
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.models.decoder import Decoder
from actorlm.models.registry import family
from actorlm.models.weights import load_weights
from actorlm.number_types import type_of
from actorlm.parallel.group import Alone, TensorGroup
from actorlm.parallel.meeting import Meeting
from actorlm.parallel.pipeline import PipelineLink
from actorlm.partition import Stage, kv_share, rank_parameters, share, stages
from actorlm.sampling import SamplingParams
from actorlm.topology import ONLY, Place, bytes_per_weight
from actorlm.wire import int32

DTYPES = {"auto": torch.float32, **FLOATS}
"""auto is float32, for who plans nothing; see `planning.with_types`."""

Meet = Callable[[], Meeting]


class Runner:
    """Runs a model, or this rank's part of it, on a CPU or a GPU. `load` comes first.

    `num_blocks` blocks of 16 tokens make the KV cache; at most `max_num_seqs` slots are in use, `max_model_len` tokens
    long, and a step has at most `max_num_batched_tokens` tokens. `weights` is the form of matrices and `kv_cache_dtype`
    the type of the cache; auto is `dtype`. `device` is cpu or cuda; on a CPU `kernels` is native, torch, or auto for
    native where there are some, and `threads` are those of either in this process; None stands for torch's own number.
    `meet` finds the other ranks of `place`, if there are any; `pipeline_layers` are the layers of each stage, or none
    for a choice.
    """

    def __init__(
        self,
        model: ModelDescription,
        *,
        dtype: str,
        weights: str = "auto",
        kv_cache_dtype: str = "auto",
        kernels: str,
        device: str = "cpu",
        num_blocks: int,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        threads: int | None,
        place: Place = ONLY,
        meet: Meet | None = None,
        pipeline_layers: tuple[int, ...] = (),
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"dtype is {dtype}; it must be one of {', '.join(DTYPES)}", param="dtype")
        assert meet is not None or place.world_size == 1, "several ranks meet somewhere"
        self.description = model
        self.bytes_read = 0
        """Of the checkpoint's tensors, by this rank."""
        self._dtype = DTYPES[dtype]
        self._kv_type = type_of(kv_cache_dtype, dtype)
        self._backend = choose_backend(device, kernels, threads)
        self._native = self._backend if isinstance(self._backend, Native) else None
        self._weights = _form(weights, self._dtype)
        if self._native is None and self._weights not in FLOATS:
            raise ConfigError(f"--weights {weights} needs the compiled kernels", param="weights")
        self._num_blocks = num_blocks
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        self._threads = threads
        self._place = place
        self._meet = meet
        layers = stages(model, place.pipeline_size, pipeline_layers)
        self._stage = Stage(layers[place.pipeline_rank], place.is_first_stage, place.is_last_stage)
        self._part = _part_of(model, place, layers)
        self._slots = Slots(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            num_blocks=num_blocks,
            vocab_size=model.vocab_size,
        )
        shape = CacheShape(num_blocks, self._part.num_kv_heads, model.head_dim, self._dtype)
        self._tensors = tensors_for(self._backend, self._part, shape)
        self._caches: list[LayerCache] = []
        self._group: TensorGroup = Alone()
        self._link: PipelineLink | None = None
        self._late: LateIds | None = None
        self._graphs: DecodeGraphs | None = None

    def load(self, progress: Callable[[int, int], None]) -> None:
        """Meets the other ranks, allocates the cache and loads the weights; returns when all ranks have.

        `progress` gets bytes done and in total. Raises InsufficientMemory, ModelError if the checkpoint cannot be used,
        or PeerMissing.
        """
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        of_family = family(self.description.architecture)
        size = bytes_per_weight(self._weights, self._weights, self.description)
        check_memory(self._part, self._num_blocks, size, self._kv_type, free_bytes(self._backend))
        meeting = self._meet() if self._meet is not None else None
        if meeting is not None:
            self._join(meeting)
        arena = Arena(self._weights, self._backend, self._group)
        self._caches = allocate(self._part, self._num_blocks, self._kv_type, self._backend)
        self.model = Decoder(of_family, self.description, arena, self._stage)
        form = self.description.format
        assert form != "bytes", "the null model's vocabulary is of no family"
        self.bytes_read = load_weights(self.description, self.model.parameters(form), progress)
        self._choice = Choice(
            self._max_num_seqs, self.description.vocab_size, self.description.eos_token_ids, self._group, self._native
        )
        if isinstance(self._backend, Gpu):
            self._graphs = self._record(self._backend)
        if meeting is not None:
            meeting.wait_for_all("loaded")

    @torch.inference_mode()
    def _record(self, gpu: Gpu) -> DecodeGraphs:
        width = -(-self._max_model_len // BLOCK_SIZE)
        return DecodeGraphs(self.model, self._caches, gpu, make_recorder(gpu), self._max_num_seqs, width)

    def _join(self, meeting: Meeting) -> None:
        self._group = meeting.tensor_group(self._native)
        self._link = meeting.pipeline()
        if not self._stage.is_last:
            receive = self._receive_ids if self._stage.is_first else None
            self._late = LateIds(self._slots, self._place.pipeline_size, receive)

    def _receive_ids(self, count: int) -> NDArray[np.int32]:
        assert self._link is not None, "stages have links"
        ids: NDArray[np.int32] = self._link.receive_ids(count).numpy()
        return ids

    def warm_up(self) -> None:
        """Runs one real step of one token in slot 0 and block 0, which must be free, and frees them again.

        The cache is empty then, and takes no memory: with huge pages one block of each layer took 4 MiB.
        """
        request = AddRequest(0, int32([0]), 1, SamplingParams(max_tokens=1, temperature=0.0))
        zero, one, none = int32([0]), int32([1]), b""
        self.execute(RunStep(0, none, (request,), zero, zero, zero, zero, one, zero))
        self.execute(RunStep(0, zero, (), none, none, none, none, none, none))
        if not isinstance(self._backend, Gpu):
            empty(self._caches)

    @torch.inference_mode()
    def execute(self, step: RunStep) -> StepDone | None:
        """Computes one step, which the output rank answers.

        Raises ProtocolError for a plan that contradicts the slots, before any tensor changes, and PeerMissing if
        another rank does not do its part.
        """
        began = time.perf_counter_ns()
        batch = self._slots.apply(step)
        for request in step.added if self._stage.is_last else ():
            self._choice.put(request)
        tokens, logprobs = self._compute(step.step, batch) if len(batch.slots) > 0 else (NO_IDS, None)
        if not self._place.is_output:
            return None
        return StepDone(step.step, tokens.tobytes(), time.perf_counter_ns() - began, logprobs)

    def logits(self, batch: Batch) -> Tensor:
        """float32 logits [S, V] of the batch's sampled rows, of a model on one rank; the cache gains its tokens."""
        return self._logits(batch, self._run(0, batch))

    def _compute(self, step: int, batch: Batch) -> tuple[NDArray[np.int32], Logprobs | None]:
        parts = self._choice.prompt_parts(batch, self._slots.tokens) if self._stage.is_last else []
        if self._graphs is not None and self._graphs.take(batch) and not parts:
            logits = self._graphs.logits(batch, self._slots.tables.values[batch.slots])
            return self._choose(batch, parts, logits.cpu())
        x_TE = self._run(step, batch)
        if not self._stage.is_last:
            assert self._link is not None, "stages have links"
            assert self._late is not None, "ids come later to a stage before the last"
            self._link.send(x_TE)
            self._late.await_ids(step, batch)
            tokens, logprobs = NO_IDS, None
        else:
            wanted = np.concatenate([batch.sampled_tokens, *(part.tokens for part in parts)])
            logits = self._logits(replace(batch, sampled_tokens=wanted) if parts else batch, x_TE)
            tokens, logprobs = self._choose(batch, parts, logits)
        self._group.check()
        return tokens, logprobs

    def _run(self, step: int, batch: Batch) -> Tensor:
        """What this stage makes of the step's tokens [T, E]."""
        arrival = None
        if self._link is not None and not self._stage.is_first:
            arrival = self._link.expect(len(batch.token_ids), self.description.hidden_size, self._activations)
        if self._late is not None:
            batch = self._late.complete(step, batch)
        tables = self._slots.tables.values[batch.slots]
        token_ids_T, positions_T, places, plan = self._tensors(batch, tables)
        x_TE = self.model.embed(token_ids_T) if arrival is None else arrival.wait()
        return self.model(x_TE, positions_T, places, plan, self._caches)

    def _choose(
        self, batch: Batch, parts: list[PromptPart], logits: Tensor
    ) -> tuple[NDArray[np.int32], Logprobs | None]:
        tokens, logprobs = self._choice.choose(batch, parts, logits)
        if len(tokens) > 0:
            self._slots.append(batch.sampled_slots, tokens)
            if self._link is not None and self._place.is_output:
                self._link.send_ids(torch.from_numpy(tokens))
        return tokens, logprobs

    def _logits(self, batch: Batch, x_TE: Tensor) -> Tensor:
        wanted_S = torch.from_numpy(batch.sampled_tokens).to(x_TE.device)
        return self.model.logits(x_TE.index_select(0, wanted_S)).cpu()

    @property
    def _activations(self) -> torch.dtype:
        return self._dtype if self._native is None else torch.float32


def _form(weights: str, dtype: torch.dtype) -> str:
    return next(name for name, each in FLOATS.items() if each is dtype) if weights == "auto" else weights


def _part_of(model: ModelDescription, place: Place, layers: tuple[range, ...]) -> ModelDescription:
    """A rank's part as a model of its own: its layers, heads and parameters."""
    size, rank = place.tensor_size, place.tensor_rank
    return msgspec.structs.replace(
        model,
        num_layers=len(layers[place.pipeline_rank]),
        num_heads=len(share(model.num_heads, size, rank)),
        num_kv_heads=len(kv_share(model.num_kv_heads, size, rank)),
        num_parameters=list(rank_parameters(model, size, layers))[place.pipeline_rank],
    )
