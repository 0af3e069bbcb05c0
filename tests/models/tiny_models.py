"""Tiny random models of each family, written by transformers, and the same as GGUF. Sizes divide by 4.

`FAMILIES` maps a name to a function that makes a directory with config.json and safetensors: `make(directory,
**changes)` gives transformers' model; `changes` are keys of its configuration. The same call gives the same weights.
"""

from collections.abc import Callable
from functools import partial

import gguf
import torch
import transformers

VOCAB = 300
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
}
GGUF_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def _make(family, own, directory, **changes):
    torch.set_num_threads(1)
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15)
    model.save_pretrained(directory)
    return model


FAMILIES: dict[str, Callable] = {
    "llama": partial(_make, "Llama", {"tie_word_embeddings": True}),
    "mistral": partial(_make, "Mistral", {"head_dim": 16, "sliding_window": None}),
    "qwen2": partial(_make, "Qwen2", {"num_key_value_heads": 2}),
    "qwen3": partial(_make, "Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}


def write_gguf(family, model, path, type_of=lambda name: "F32"):
    """The model as llama.cpp's converter writes it, but for a vocabulary without meaning.

    `type_of` gives the type of each matrix, one of those that `gguf.quants` can make.
    """
    architecture, config = GGUF_ARCHITECTURES[family], model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    for name, tensor in _gguf_tensors(architecture, model, head_dim):
        kind = gguf.GGMLQuantizationType[type_of(name) if tensor.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(tensor.contiguous().numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_tensors(architecture, model, head_dim):
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():  # a tied head is not among them
        tensor = parameter.detach()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = tensor.view(-1, 2, head_dim // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
        yield names.get_name(name, (".weight", ".bias")), tensor
