"""Which class runs which architecture. A row is `architecture: module:class`; classes have the interface of `Llama`."""

from importlib import import_module
from typing import Any

from actorlm.errors import ModelError

MODELS = {"LlamaForCausalLM": "actorlm.models.llama:Llama"}


def model_class(architecture: str) -> Any:
    """The class for a checkpoint's architecture. Raises ModelError naming those that exist."""
    if architecture not in MODELS:
        raise ModelError(f"the architecture {architecture} is not supported; supported: {', '.join(sorted(MODELS))}")
    module, name = MODELS[architecture].split(":")
    return getattr(import_module(module), name)
