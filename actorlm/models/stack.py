"""A model's layers, one after another; steps of few tokens repeat what an earlier one of the same size launched.

A step of few tokens is hundreds of short launches, and those of two steps of T tokens differ in nothing but what lies
in memory. Once a step was recorded, the next one is its inputs, copied to where the first ones lay, and the same
launches without the Python between them.

Legend: T tokens, E hidden size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from actorlm.kernels.backend import Backend
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.native import Launch, Native
from actorlm.kernels.paged_attention import TilePlan
from actorlm.layers.activations import Activations
from actorlm.layers.arena import Arena
from actorlm.layers.attention import LayerInputs
from actorlm.layers.weight import Weight

MAX_TOKENS = 128
"""In larger steps the time between launches does not show."""
MAX_RECORDINGS = 8
"""Each holds buffers for its tokens."""

Caches = Sequence[LayerCache]


class Layer(Protocol):
    """One of them. With native kernels it does nothing but launch them."""

    def buffers(self, num_tokens: int, backend: Backend) -> Activations:
        """For this layer and all of its shape."""

    def update(self, x_TE: Tensor, inputs: LayerInputs, cache: LayerCache, work: Activations) -> None:
        """Changes the vectors `x` in place."""

    def parameters(self) -> Iterator[Weight]:
        """Everything that is read from a checkpoint."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The launches of one step, and everything that they read and write."""

    x_TE: Tensor
    inputs: LayerInputs
    caches: Caches
    work: Activations
    launches: list[Launch]

    def repeat(self, x_TE: Tensor, inputs: LayerInputs) -> Tensor:
        """The result for other inputs of the same sizes, in a buffer that the next call overwrites."""
        self.x_TE.copy_(x_TE)
        self.inputs.rotation_T1h.copy_(inputs.rotation_T1h)
        self.inputs.places_T2k.copy_(inputs.places_T2k)
        _numbers(self.inputs).copy_(_numbers(inputs))
        for launch in self.launches:
            launch.function(*launch.arguments)
        return self.x_TE


def _numbers(inputs: LayerInputs) -> Tensor:
    assert isinstance(inputs.plan, TilePlan), "native kernels have plans of their own"
    return inputs.plan.numbers_6


class Stack:
    """Layers of one shape. With native kernels they launch these, and small steps are recorded."""

    def __init__(self, layers: Sequence[Layer], arena: Arena) -> None:
        self._layers = layers
        self._backend = arena.backend
        self._max_recorded = MAX_TOKENS if arena.group.launches else 0
        self._recordings: dict[int, Recording] = {}

    def __call__(self, x_TE: Tensor, inputs: LayerInputs, caches: Caches) -> Tensor:
        """The result [T, E], which holds until the next call. It may be `x` itself, changed."""
        recording = self._recordings.get(len(x_TE))
        if recording is not None and recording.caches is caches:
            return recording.repeat(x_TE, inputs)
        work = self._layers[0].buffers(len(x_TE), self._backend)
        if not isinstance(self._backend, Native) or len(x_TE) > self._max_recorded:
            self._update(x_TE, inputs, caches, work)
            return x_TE
        with self._backend.recording() as launches:
            self._update(x_TE, inputs, caches, work)
        self._keep(Recording(x_TE, inputs, caches, work, launches))
        return x_TE

    def _update(self, x_TE: Tensor, inputs: LayerInputs, caches: Caches, work: Activations) -> None:
        for layer, cache in zip(self._layers, caches, strict=True):
            layer.update(x_TE, inputs, cache, work)

    def _keep(self, recording: Recording) -> None:
        self._recordings.pop(len(recording.x_TE), None)
        if len(self._recordings) == MAX_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        self._recordings[len(recording.x_TE)] = recording
