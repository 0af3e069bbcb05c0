"""A model of random weights on a GPU, with a cache as full as if its rows had a context."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actorlm.bench.gpu.stage import Machine
from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.execution.attention_plan import CacheShape
from actorlm.execution.batch import Batch
from actorlm.execution.decode_graphs import DecodeGraph, make_recorder
from actorlm.execution.kv_cache import allocate
from actorlm.execution.step_tensors import tensors_for
from actorlm.kernels.backend import Gpu
from actorlm.layers.arena import FLOATS, Arena
from actorlm.models.decoder import Decoder
from actorlm.models.registry import family
from actorlm.partition import Stage

SPREAD = 0.02
"""Of the weights, as models begin their training with."""


class RandomModel:
    """Of the Llama family, in the machine's sizes. Rows have `context` tokens, the last of which a step computes."""

    def __init__(self, machine: Machine, rows: int, context: int) -> None:
        sizes = machine.sizes
        name = next(name for name, dtype in FLOATS.items() if dtype is sizes.dtype)
        self._context = context
        self._width = -(-context // BLOCK_SIZE)
        self._gpu = Gpu(machine.device, machine.multiprocessors, machine.card)
        model = ModelDescription(
            path="", format="safetensors", name="random", architecture="LlamaForCausalLM", vocab_size=sizes.vocab,
            max_model_len=context, bos_token_id=None, eos_token_ids=(), hidden_size=sizes.hidden,
            intermediate_size=sizes.intermediate, num_layers=sizes.layers, num_heads=sizes.heads,
            num_kv_heads=sizes.kv_heads, head_dim=sizes.head_dim,
        )  # fmt: skip
        arena = Arena(name, self._gpu)
        self._model = Decoder(family(model.architecture), model, arena, Stage(range(sizes.layers), True, True))
        for parameter in self._model.parameters("safetensors"):
            weight = parameter.destination
            assert isinstance(weight, Tensor), "weights on a GPU are tensors"
            weight.normal_(0.0, SPREAD) if weight.dim() > 1 else weight.fill_(1.0)
        blocks = rows * self._width
        self._caches = allocate(model, blocks, name, self._gpu)
        for cache in self._caches:
            cache.all_2bk16H.normal_()
        shape = CacheShape(blocks, sizes.kv_heads, sizes.head_dim, sizes.dtype)
        self._tensors = tensors_for(self._gpu, model, shape)
        weights = [parameter.destination for parameter in self._model.parameters("safetensors")]
        self.weight_bytes = sum(weight.nbytes for weight in weights) - sizes.vocab * sizes.hidden * sizes.dtype.itemsize
        """That a step reads: of the embedding it reads its tokens' rows alone."""
        self.cache_bytes_per_row = context * model.kv_vectors_per_token * sizes.head_dim * sizes.dtype.itemsize

    def batch(self, rows: int) -> tuple[Batch, NDArray[np.int32]]:
        """A step of so many rows, and their block tables."""
        order = np.random.default_rng(0).permutation(rows * self._width).astype(np.int32)
        tables = order.reshape(rows, self._width)
        each, ones = np.arange(rows), np.ones(rows, np.int64)
        positions = ones * (self._context - 1)
        batch = Batch(
            slots=each, starts=positions, counts=ones, token_ids=each % 100, positions=positions,
            blocks=tables[:, -1].astype(np.int64), sampled_rows=each, sampled_slots=each, sampled_tokens=each,
            sampled_positions=positions + 1, generated=ones * 0,
        )  # fmt: skip
        return batch, tables

    def eager(self, batch: Batch, tables: NDArray[np.int32]) -> Tensor:
        """Logits of a step that is launched anew."""
        ids, positions, places, plan = self._tensors(batch, tables)
        x = self._model(self._model.embed(ids), positions, places, plan, self._caches)
        return self._model.logits(x)

    def graph(self, rows: int) -> DecodeGraph:
        """A recorded step of so many rows."""
        return DecodeGraph(self._model, self._caches, self._gpu, make_recorder(self._gpu), rows, self._width)
