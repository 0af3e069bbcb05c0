"""How a model is cut over the ranks of a replica: which heads, features, ids and layers are whose.

Pure numbers, without torch: `plan` refuses with them what cannot be cut, and layers take their shares by them. A tensor
rank has consecutive heads, features and token ids; a pipeline stage has consecutive layers.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from actorlm.errors import ConfigError

MAX_RANKS = 64
ALIGNED_IDS = 16
"""Shares of the vocabulary begin at multiples of it, as matrices are packed; the last ones may be smaller or empty."""


class Stage(NamedTuple):
    """A pipeline stage's layers, and whether it begins with token ids and ends with logits."""

    layers: range
    is_first: bool
    is_last: bool


class Dimensions(Protocol):
    """The numbers of a model that decide how it can be cut."""

    @property
    def vocab_size(self) -> int:
        """Token ids."""

    @property
    def hidden_size(self) -> int:
        """Features of a token."""

    @property
    def intermediate_size(self) -> int:
        """Features inside the MLP."""

    @property
    def num_layers(self) -> int:
        """Layers."""

    @property
    def num_heads(self) -> int:
        """Query heads."""

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads."""

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether embedding and head are one matrix."""

    @property
    def num_parameters(self) -> int:
        """All of them."""


def check_tensor(model: Dimensions, tensor: int) -> None:
    """Raises ConfigError, which says what would fit, if so many ranks cannot share each layer."""
    reason = _tensor_obstacle(model, tensor)
    if reason is not None:
        fits = [str(size) for size in range(1, MAX_RANKS + 1) if _tensor_obstacle(model, size) is None]
        raise ConfigError(f"--tp {tensor}: {reason}; --tp may be {_alternatives(fits)}", param="tensor")


def _tensor_obstacle(model: Dimensions, tensor: int) -> str | None:
    heads, kv_heads, features = model.num_heads, model.num_kv_heads, model.intermediate_size
    if heads % tensor:
        return f"the model's {heads} attention heads cannot be shared by {tensor} ranks"
    if kv_heads % tensor and tensor % kv_heads:
        return f"the model's {kv_heads} key-value heads can be neither shared by {tensor} ranks nor copied evenly"
    if features % tensor:
        return f"the model's {features} MLP features cannot be shared by {tensor} ranks"
    return None


def _alternatives(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def kv_share(num_kv_heads: int, size: int, rank: int) -> range:
    """The key-value heads of one tensor rank: its own, or one that several ranks copy."""
    if size <= num_kv_heads:
        return share(num_kv_heads, size, rank)
    head = rank * num_kv_heads // size
    return range(head, head + 1)


def share(total: int, size: int, rank: int) -> range:
    """The part of `total` heads or features, a multiple of `size`, that one tensor rank has."""
    assert total % size == 0, f"{total} is no multiple of {size}"
    each = total // size
    return range(rank * each, (rank + 1) * each)


def vocab_share(vocab_size: int, size: int, rank: int) -> range:
    """The token ids whose vectors one tensor rank has; any vocabulary can be cut."""
    each = -(-vocab_size // (size * ALIGNED_IDS)) * ALIGNED_IDS
    return range(min(rank * each, vocab_size), min((rank + 1) * each, vocab_size))


def stages(model: Dimensions, pipeline: int, listed: Sequence[int] = ()) -> tuple[range, ...]:
    """The layers of each pipeline stage: as many as `listed`, or such that the largest stage has few parameters.

    Raises ConfigError for more stages than layers, and for a list that does not fit.
    """
    if pipeline > model.num_layers:
        raise ConfigError(
            f"--pp {pipeline}: the model has {model.num_layers} layers, and a stage needs one;"
            f" --pp may be 1 to {model.num_layers}",
            param="pipeline",
        )
    counts = list(listed) if listed else _counts(model, pipeline)
    if len(counts) != pipeline or min(counts) < 1 or sum(counts) != model.num_layers:
        raise ConfigError(
            f"--pipeline-layers is {','.join(map(str, listed))}; it must be {pipeline} numbers from 1 on that add up to"
            f" the model's {model.num_layers} layers",
            param="pipeline_layers",
        )
    ends = [sum(counts[: index + 1]) for index in range(pipeline)]
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


def _counts(model: Dimensions, pipeline: int) -> list[int]:
    """Layers of each stage. Of those that make the largest stage least, the one that fills the last stages first."""
    layer, (first, last) = layer_parameters(model), _edges(model, pipeline)
    counts = [1] * pipeline
    for _ in range(model.num_layers - pipeline):
        sizes = [count * layer for count in counts]
        sizes[0] += first
        sizes[-1] += last
        counts[max(range(pipeline), key=lambda stage: (-sizes[stage], stage))] += 1
    return counts


def layer_parameters(model: Dimensions) -> int:
    """Those of one layer."""
    matrices = 1 if model.tie_word_embeddings else 2
    return max(model.num_parameters - matrices * model.vocab_size * model.hidden_size, 0) // model.num_layers


def _edges(model: Dimensions, pipeline: int) -> tuple[int, int]:
    """Parameters that the first and the last of several stages have beside layers: the embedding, and the head."""
    matrix = model.vocab_size * model.hidden_size
    return (matrix, matrix) if pipeline > 1 else (matrix if model.tie_word_embeddings else 2 * matrix, 0)


def rank_parameters(model: Dimensions, tensor: int, layers: Sequence[range]) -> Iterator[int]:
    """About how many parameters a rank of each stage holds; key-value heads that are copied are not counted twice."""
    first, last = _edges(model, len(layers))
    for stage, part in enumerate(layers):
        edge = (first if stage == 0 else 0) + (last if stage == len(layers) - 1 else 0)
        yield -(-(len(part) * layer_parameters(model) + edge) // tensor)
