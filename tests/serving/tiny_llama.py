"""A model directory of some kilobytes, written without torch: a Llama of zeros or noise, with a vocabulary of bytes."""

import json
import math
import random
import struct

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def write(directory, *, seed=None, adds_bos=False, **config):
    """Fills `directory` and returns it. With a seed, the weights are noise, and every token depends on all before it.

    `config` replaces values of CONFIG that have nothing to do with shapes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    (directory / "model.safetensors").write_bytes(_safetensors(_shapes(), seed))
    _tokenizer(adds_bos).save(str(directory / "tokenizer.json"))
    return directory


def _shapes():
    wide, narrow, mlp = CONFIG["hidden_size"], CONFIG["hidden_size"] // 2, CONFIG["intermediate_size"]
    in_layer = {
        "input_layernorm": (wide,), "post_attention_layernorm": (wide,),
        "self_attn.q_proj": (wide, wide), "self_attn.k_proj": (narrow, wide), "self_attn.v_proj": (narrow, wide),
        "self_attn.o_proj": (wide, wide),
        "mlp.gate_proj": (mlp, wide), "mlp.up_proj": (mlp, wide), "mlp.down_proj": (wide, mlp),
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (CONFIG["vocab_size"], wide), "model.norm.weight": (wide,)}
    for layer in range(CONFIG["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in in_layer.items()}
    return shapes


def _safetensors(shapes, seed):
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    if seed is None:
        return struct.pack("<Q", len(text)) + text + bytes(offset)
    noise = random.Random(seed)
    values = [noise.gauss(0, 0.4) for _ in range(offset // 4)]
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(values)}f", *values)


def _tokenizer(adds_bos):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return backend
