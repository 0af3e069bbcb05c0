"""Which module runs which architecture. Each has a `build` that makes a `Decoder` of the family, or a stage of it."""

from importlib import import_module
from typing import Any

from actorlm.errors import ModelError

MODELS = {
    "LlamaForCausalLM": "actorlm.models.llama",
    "MistralForCausalLM": "actorlm.models.llama",
    "Qwen2ForCausalLM": "actorlm.models.qwen2",
    "Qwen3ForCausalLM": "actorlm.models.qwen3",
}


def builder(architecture: str) -> Any:
    """`build` for a checkpoint's architecture. Raises ModelError naming those that exist."""
    if architecture not in MODELS:
        raise ModelError(f"the architecture {architecture} is not supported; supported: {', '.join(sorted(MODELS))}")
    return import_module(MODELS[architecture]).build
