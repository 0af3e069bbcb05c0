"""A GGUF file's metadata as a description, and a named refusal of everything that is not implemented."""

import math

import gguf
import numpy as np
import pytest

from actorlm.checkpoint.description import RopeScaling
from actorlm.checkpoint.gguf_metadata import describe_gguf
from actorlm.errors import ModelError

HEAD_DIM = 128


def test_every_field(llama_gguf):
    model = describe_gguf(llama_gguf(tensors={"output.weight": (4, 32)}), "m")
    assert (model.format, model.name, model.architecture) == ("gguf", "m", "LlamaForCausalLM")
    assert (model.vocab_size, model.max_model_len, model.hidden_size, model.intermediate_size) == (4, 128, 32, 48)
    assert (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim) == (2, 4, 2, 8)
    assert model.rms_norm_eps == pytest.approx(1e-5)
    assert (model.rope_theta, model.rope_scaling, model.tie_word_embeddings) == (10000.0, None, False)
    assert (model.bos_token_id, model.eos_token_ids) == (0, (1,))
    assert (model.num_parameters, model.weight_bytes) == (4 * 32 * 2 + 32 * 32, 4 * (4 * 32 * 2 + 32 * 32))


def test_tied_embeddings_and_other_optional_keys(llama_gguf):
    def change(writer):
        writer.add_float32("llama.rope.freq_base", 100000.0)
        writer.add_uint32("llama.attention.key_length", 16)
        writer.add_uint32("llama.attention.value_length", 16)
        writer.add_uint32("tokenizer.ggml.eot_token_id", 2)

    model = describe_gguf(llama_gguf(change), "m")
    assert (model.tie_word_embeddings, model.rope_theta, model.head_dim) == (True, 100000.0, 16)
    assert model.eos_token_ids == (1, 2)


def test_biases(llama_gguf):
    attention = {f"blk.0.attn_{name}.bias": (32,) for name in ("q", "k", "v", "output")}
    feed_forward = {f"blk.0.ffn_{name}.bias": (32,) for name in ("gate", "up", "down")}
    model = describe_gguf(llama_gguf(tensors=attention), "m")
    assert (model.attention_bias, model.mlp_bias) == (True, False)
    model = describe_gguf(llama_gguf(tensors=feed_forward), "m")
    assert (model.attention_bias, model.mlp_bias) == (False, True)
    with pytest.raises(ModelError, match="biases for some of"):
        describe_gguf(llama_gguf(tensors={"blk.0.attn_q.bias": (32,)}), "m")


def rope_factors(factor, low, high, original, theta=500000.0):
    """Written as in the converters of llama.cpp."""
    factors = []
    for frequency in 1.0 / theta ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            factors.append(1)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def with_theta(writer):
    writer.add_float32("llama.rope.freq_base", 500000.0)
    writer.add_uint32("llama.attention.key_length", HEAD_DIM)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_from_its_frequency_factors(llama_gguf, factor):
    tensors = {"rope_freqs.weight": rope_factors(factor, 1, 4, 8192)}
    model = describe_gguf(llama_gguf(with_theta, tensors=tensors), "m")
    assert model.rope_scaling == RopeScaling(
        factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    assert model.num_parameters == 4 * 32 + 32 * 32


@pytest.mark.parametrize("factors", [rope_factors(8, 2, 4, 8192), rope_factors(8, 1, 4, 4096), np.ones(3, np.float32)])
def test_other_frequency_factors_are_refused(llama_gguf, factors):
    with pytest.raises(ModelError, match=r"rope_freqs\.weight are not Llama 3's"):
        describe_gguf(llama_gguf(with_theta, tensors={"rope_freqs.weight": factors}), "m")


def test_factors_of_one_scale_by_one(llama_gguf):
    model = describe_gguf(llama_gguf(with_theta, tensors={"rope_freqs.weight": np.ones(64, np.float32)}), "m")
    assert model.rope_scaling.factor == 1.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.value_length", 16),
        ("rope.dimension_count", 4),
        ("expert_count", 8),
    ],
)
def test_numbers_that_change_the_arithmetic(llama_gguf, key, value):
    with pytest.raises(ModelError, match=rf"llama\.{key} is {value}, which is not supported"):
        describe_gguf(llama_gguf(lambda writer: writer.add_uint32(f"llama.{key}", value)), "m")


def test_a_sliding_window(llama_gguf):
    path = llama_gguf(lambda writer: writer.add_uint32("llama.attention.sliding_window", 4096))
    assert describe_gguf(path, "m").sliding_window == 4096
    assert describe_gguf(llama_gguf(), "m").sliding_window is None


@pytest.mark.parametrize(("architecture", "name"), [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")])
def test_other_families(llama_gguf, architecture, name):
    model = describe_gguf(llama_gguf(architecture=architecture), "m")
    assert (model.architecture, model.num_heads, model.head_dim) == (name, 4, 8)


def test_a_refusal_names_the_architecture_of_the_key(llama_gguf):
    def change(writer):
        writer.add_string("qwen2.rope.scaling.type", "yarn")

    with pytest.raises(ModelError, match=r"qwen2\.rope\.scaling\.type is yarn"):
        describe_gguf(llama_gguf(change, architecture="qwen2"), "m")


def test_biases_of_qwen2_are_those_of_query_key_and_value(llama_gguf):
    tensors = {f"blk.0.attn_{name}.bias": (32,) for name in ("q", "k", "v")}
    assert describe_gguf(llama_gguf(tensors=tensors, architecture="qwen2"), "m").attention_bias


def test_other_rope_scaling(llama_gguf):
    with pytest.raises(ModelError, match=r"rope\.scaling\.type is yarn"):
        describe_gguf(llama_gguf(lambda writer: writer.add_string("llama.rope.scaling.type", "yarn")), "m")


def test_another_architecture(llama_gguf):
    with pytest.raises(ModelError, match="architecture mamba, which is not supported; supported: llama, qwen2, qwen3"):
        describe_gguf(llama_gguf(architecture="mamba"), "m")


@pytest.mark.parametrize("key", ["context_length", "attention.head_count"])
def test_a_missing_key(llama_gguf, key):
    with pytest.raises(ModelError, match=rf"tiny\.gguf, llama\.\*: .*`{key}`"):
        describe_gguf(llama_gguf(without=(key,)), "m")


def test_a_missing_embedding(llama_gguf):
    with pytest.raises(ModelError, match=r"no tensor token_embd\.weight"):
        describe_gguf(llama_gguf(without=("token_embd.weight",)), "m")


def test_more_tokens_than_embeddings(llama_gguf):
    with pytest.raises(ModelError, match="has 4 tokens, but embeddings of 3"):
        describe_gguf(llama_gguf(tensors={"token_embd.weight": (3, 32)}), "m")


def test_heads_that_do_not_divide(llama_gguf):
    def change(writer):
        writer.add_uint32("llama.attention.head_count_kv", 3)

    with pytest.raises(ModelError, match="4 attention heads are no multiple of 3"):
        describe_gguf(llama_gguf(change, without=("attention.head_count_kv",)), "m")


def test_gguf_package_agrees_on_the_tensors(llama_gguf):
    path = llama_gguf()
    assert describe_gguf(path, "m").num_parameters == sum(int(t.n_elements) for t in gguf.GGUFReader(path).tensors)
