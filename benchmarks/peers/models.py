"""The model files that the peers need, all with the same weights: those of a GGUF file, dequantised once.

    python benchmarks/peers/models.py MODEL.gguf DIRECTORY

MODEL.gguf is SmolLM2-135M-Instruct as Q4_1, which `actorlm pull smollm2-135m` fetches. DIRECTORY gets `q4_1.gguf` (a
link to it), `f32.gguf`, `f16.gguf` and `q8_0.gguf`, and the directory `hf` with float32 safetensors, whose tokenizer
is actorlm's reading of the GGUF file: transformers' own leaves out the pre-tokenizer `smollm`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, ReaderField
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from actorlm.text.gguf_tokenizer import gguf_backend

FORMATS = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
OURS_TO_WRITE = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type"}
"""Metadata that the writer makes itself, or that changes."""

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHERS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}

Weights = dict[str, NDArray[np.float32]]


def make(source: Path, directory: Path) -> None:
    """Everything that is not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "q4_1.gguf"
    if not link.exists():
        link.symlink_to(source.resolve())
    reader = GGUFReader(str(source))
    weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    for name in FORMATS:
        if not (path := directory / f"{name}.gguf").exists():
            write_gguf(reader, weights, name, path)
    if not (directory / "hf").exists():
        write_safetensors(reader, weights, source, directory / "hf")


def write_gguf(reader: GGUFReader, weights: Weights, name: str, path: Path) -> None:
    """The same metadata; matrices in one format, vectors in float32."""
    kind, file_type = FORMATS[name]
    unfinished = path.with_suffix(".part")
    writer = GGUFWriter(unfinished, "llama")
    for field in reader.fields.values():
        if field.name not in OURS_TO_WRITE:
            add_field(writer, field)
    writer.add_file_type(file_type)
    for tensor, values in weights.items():
        stored = kind if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor, quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def add_field(writer: GGUFWriter, field: ReaderField) -> None:
    """Copies one field of metadata."""
    kind = field.types[0]
    inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)


def write_safetensors(reader: GGUFReader, weights: Weights, source: Path, directory: Path) -> None:
    """A directory as transformers and vLLM read it."""
    config = hf_config(reader)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    named: Weights = {}
    for name, values in weights.items():
        if name in OTHERS:
            named[OTHERS[name]] = values
            continue
        _, layer, part, _ = name.split(".")
        rows = halves(values, heads[part]) if part in heads else values
        named[f"model.layers.{layer}.{LAYER[part]}.weight"] = np.ascontiguousarray(rows)
    directory.mkdir()
    safetensors.numpy.save_file(named, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    backend = gguf_backend(source)
    backend.save(str(directory / "tokenizer.json"))
    ends = {key: backend.id_to_token(config[f"{key}_id"]) for key in ("bos_token", "eos_token")}
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **ends}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1))


def halves(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of queries or keys, as they were before llama.cpp put the two halves of a head between each other."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def hf_config(reader: GGUFReader) -> dict[str, Any]:
    """`config.json`."""

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": value("llama.attention.head_count"),
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": value("llama.rope.freq_base"),
        "vocab_size": value("llama.vocab_size"),
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def main() -> None:
    """Does what the head of this file says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="MODEL.gguf")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    options = parser.parse_args()
    make(options.source, options.directory)


if __name__ == "__main__":
    main()
