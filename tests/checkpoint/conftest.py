"""Small models on disk: a Llama directory and a Llama GGUF file, both changed by the tests that need them wrong."""

import json

import gguf
import numpy as np
import pytest
from checkpoint_files import safetensors_bytes

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "rope_theta": 5000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture
def llama_directory(tmp_path):
    """Makes a directory with config.json (keys changed by keyword, None removes one) and one safetensors file."""

    def make(generation=None, **changes):
        directory = tmp_path / "tiny-llama"
        directory.mkdir(exist_ok=True)
        config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(config))
        (directory / "model.safetensors").write_bytes(safetensors_bytes({"a": (4, 8), "b": (3,)}))
        if generation is not None:
            (directory / "generation_config.json").write_text(json.dumps(generation))
        return directory

    return make


@pytest.fixture
def llama_gguf(tmp_path):
    """Makes a GGUF file of a tiny Llama; `change` gets the writer to add keys, `tensors` adds and `without` removes."""

    def make(change=lambda _writer: None, *, tensors=None, without=(), architecture="llama"):
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        keys = {
            "context_length": 128,
            "embedding_length": 32,
            "block_count": 2,
            "feed_forward_length": 48,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
        }
        for key, value in keys.items():
            if key not in without:
                writer.add_uint32(f"{architecture}.{key}", value)
        writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "<|eot|>", "a"])
        writer.add_uint32("tokenizer.ggml.bos_token_id", 0)
        writer.add_uint32("tokenizer.ggml.eos_token_id", 1)
        change(writer)
        present = {"token_embd.weight": (4, 32), "blk.0.attn_q.weight": (32, 32), **(tensors or {})}
        for name, shape in present.items():
            if name not in without:
                data = shape if isinstance(shape, np.ndarray) else np.zeros(shape, np.float32)
                writer.add_tensor(name, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make
