"""Which module describes which architecture's family: see `decoder.Family`."""

from importlib import import_module
from typing import Any

from actorlm.errors import ModelError
from actorlm.models.decoder import Family

MODELS = {
    "LlamaForCausalLM": "actorlm.models.llama",
    "MistralForCausalLM": "actorlm.models.llama",
    "Qwen2ForCausalLM": "actorlm.models.qwen2",
    "Qwen3ForCausalLM": "actorlm.models.qwen3",
}


def family(architecture: str) -> Family:
    """The family of a checkpoint's architecture. Raises ModelError naming those that exist."""
    if architecture not in MODELS:
        raise ModelError(f"the architecture {architecture} is not supported; supported: {', '.join(sorted(MODELS))}")
    module: Any = import_module(MODELS[architecture])
    return Family(module.layer, module.NAMES)
