"""What the families have in common: token ids become vectors, layers change them, and a norm and a head make logits.

A pipeline stage has some of the layers; the first one has the embedding too, the last one the norm and the head.

Legend: T tokens of the step, S sampled rows, E hidden size, v this rank's part of the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from actorlm.checkpoint.description import ModelDescription
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.paged_attention import Plan
from actorlm.layers.arena import Arena
from actorlm.layers.attention import LayerInputs
from actorlm.layers.embedding import Embedding
from actorlm.layers.rms_norm import RMSNorm
from actorlm.layers.rotary import Rotary
from actorlm.layers.weight import Weight
from actorlm.models.stack import Layer, Stack
from actorlm.models.weights import Parameter
from actorlm.partition import Stage

Format = Literal["safetensors", "gguf"]
ByFormat = Mapping[str, str]


class Names(NamedTuple):
    """What checkpoints call a family's weights, by format."""

    top: Mapping[str, ByFormat]
    """Of embedding, norm and head."""
    layer: ByFormat
    """The prefix of a layer's weights, with `{}` for its number."""
    in_layer: Mapping[str, ByFormat]
    in_halves: Mapping[str, Sequence[str]]
    """Whose heads a format stores for rotation of halves; others, as we need them, for rotation of neighbours."""


class Family(NamedTuple):
    """What tells a family from the others. Its module has both, as `layer` and `NAMES`."""

    layer: Callable[[ModelDescription, Arena], Layer]
    """Makes one of the model's layers."""
    names: Names


class Decoder:
    """A model, or a stage of it; its weights are zeros until `parameters` are filled."""

    def __init__(self, family: Family, model: ModelDescription, arena: Arena, stage: Stage) -> None:
        self._head_dim = model.head_dim
        self._stage = stage
        self._layers = [family.layer(model, arena) for _ in stage.layers]
        self._names = family.names
        self._rotary = Rotary(model.head_dim, model.rope_theta, model.rope_scaling, arena.device)
        self._stack = Stack(self._layers, arena)
        self._embedding = self._norm = self._head = None
        size, tied = model.hidden_size, model.tie_word_embeddings
        if stage.is_first or (stage.is_last and tied):
            self._embedding = Embedding("embedding", model.vocab_size, size, arena)
        if stage.is_last:
            self._norm = RMSNorm("norm", size, model.rms_norm_eps, arena)
            self._head = self._embedding if tied else Embedding("head", model.vocab_size, size, arena)

    def parameters(self, form: Format) -> Iterator[Parameter]:
        """What to read from a checkpoint of this format, and where to put it."""
        head = None if self._head is self._embedding else self._head
        for top in (self._embedding, self._norm, head):
            for weight in () if top is None else top.parameters():
                yield self._parameter(form, "", self._names.top, weight)
        for number, layer in zip(self._stage.layers, self._layers, strict=True):
            for weight in layer.parameters():
                yield self._parameter(form, self._names.layer[form].format(number), self._names.in_layer, weight)

    def _parameter(self, form: Format, prefix: str, names: Mapping[str, ByFormat], weight: Weight) -> Parameter:
        own, kind = weight.name.split(".")
        halved = self._head_dim if own in self._names.in_halves[form] else None
        return Parameter(f"{prefix}{names[own][form]}.{kind}", weight.destination, halved, weight.cut)

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """The vectors [T, E] of token ids (int64), on the first stage."""
        assert self._embedding is not None, "the first stage begins with ids"
        return self._embedding(token_ids_T)

    def __call__(
        self,
        x_TE: Tensor,
        positions_T: Tensor,
        places_T2k: Tensor,
        plan: Plan,
        caches: list[LayerCache],
    ) -> Tensor:
        """What the stage's layers make of `x`, which holds until the next call. The layers' caches gain the tokens."""
        return self._stack(x_TE, LayerInputs(self._rotary(positions_T), places_T2k, plan), caches)

    def logits(self, x_SE: Tensor) -> Tensor:
        """The logits [S, v] of some tokens in float32, on the last stage."""
        assert self._norm is not None, "the last stage ends with a norm"
        assert self._head is not None, "the last stage ends with a head"
        return self._head.logits(self._norm(x_SE))
