"""config.json in its two dialects, and a named refusal of everything that is not implemented."""

import inspect
import json

import pytest

from actorlm.checkpoint.config_json import ARCHITECTURES, describe_directory
from actorlm.checkpoint.description import RopeScaling, SamplingDefaults
from actorlm.errors import ModelError

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def describe(directory):
    return describe_directory(directory, "m", weights=True)


def test_every_field(llama_directory):
    model = describe(llama_directory())
    assert model.format == "safetensors"
    assert model.path.endswith("tiny-llama")
    assert model.architecture == "LlamaForCausalLM"
    assert (model.vocab_size, model.max_model_len, model.hidden_size, model.intermediate_size) == (64, 128, 32, 48)
    assert (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim) == (2, 4, 2, 8)
    assert (model.rms_norm_eps, model.rope_theta, model.rope_scaling) == (1e-5, 5000.0, None)
    assert (model.tie_word_embeddings, model.attention_bias, model.mlp_bias) == (True, False, False)
    assert (model.bos_token_id, model.eos_token_ids) == (1, (2,))
    assert (model.num_parameters, model.weight_bytes) == (35, 140)


def test_defaults_that_follow_from_other_keys(llama_directory):
    model = describe(llama_directory(num_key_value_heads=None, rope_theta=None))
    assert (model.num_kv_heads, model.rope_theta) == (4, 10000.0)
    assert describe(llama_directory(head_dim=16)).head_dim == 16


@pytest.mark.parametrize(
    ("generation", "config_eos", "expected"),
    [
        (None, 2, (2,)),
        (None, [2, 3], (2, 3)),
        (None, None, ()),
        ({"eos_token_id": [5, 6]}, 2, (5, 6)),
        ({"eos_token_id": 0}, 2, (0,)),
        ({"temperature": 0.6}, 2, (2,)),
    ],
)
def test_ids_that_end_a_generation(llama_directory, generation, config_eos, expected):
    assert describe(llama_directory(generation, eos_token_id=config_eos)).eos_token_ids == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 5e5},
        {"rope_scaling": {"type": "llama3", **LLAMA3}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}, "rope_theta": None},
    ],
)
def test_llama3_scaling_in_each_dialect(llama_directory, changes):
    model = describe(llama_directory(**changes))
    assert model.rope_theta == 5e5
    assert model.rope_scaling == RopeScaling(**LLAMA3)


def test_default_rope_parameters(llama_directory):
    model = describe(llama_directory(rope_parameters={"rope_type": "default", "rope_theta": 123.0}, rope_theta=None))
    assert (model.rope_theta, model.rope_scaling) == (123.0, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"MambaForCausalLM, which is not supported; supported: LlamaForC"),
        ({"architectures": None}, "no key `architectures`"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "yarn, which is not supported; supported: default, ll",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling has the type linear"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters has the type dynamic"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta is 'big'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised with gptq"),
        ({"num_key_value_heads": 3}, "4 is no multiple of num_key_value_heads 3"),
        ({"vocab_size": None}, r"config\.json: .*`vocab_size`"),
        ({"hidden_size": "many"}, r"config\.json: .*\$\.hidden_size"),
        ({"num_hidden_layers": 0}, r"config\.json: .*\$\.num_hidden_layers"),
    ],
)
def test_what_cannot_be_served_is_named(llama_directory, changes, words):
    with pytest.raises(ModelError, match=words):
        describe(llama_directory(**changes))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"architectures": "Llama"}'])
def test_a_damaged_config(llama_directory, content):
    directory = llama_directory()
    (directory / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        describe(directory)


def test_how_the_authors_recommend_to_sample(llama_directory):
    recommended = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}
    found = describe(llama_directory({**recommended, "do_sample": True, "max_length": 9}))
    assert found.sampling_defaults == SamplingDefaults(**recommended)
    assert describe(llama_directory({"temperature": None})).sampling_defaults == SamplingDefaults()
    assert describe(llama_directory()).sampling_defaults == SamplingDefaults()


@pytest.mark.parametrize("recommended", [{"temperature": -1}, {"top_p": 0}, {"top_k": "many"}])
def test_a_recommendation_that_cannot_be_followed(llama_directory, recommended):
    with pytest.raises(ModelError, match=rf"generation_config\.json is damaged: .*{next(iter(recommended))}"):
        describe(llama_directory(recommended))


def test_a_damaged_generation_config(llama_directory):
    with pytest.raises(ModelError, match=r"generation_config\.json is damaged: .*eos_token_id"):
        describe(llama_directory({"eos_token_id": "x"}))


def test_no_config_with_and_without_a_gguf_beside(tmp_path):
    with pytest.raises(ModelError, match=r"it has no config\.json$"):
        describe(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match=r"name the file: .*model\.gguf"):
        describe(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("MistralForCausalLM", {}, 4096),
        ("MistralForCausalLM", {"sliding_window": 64}, 64),
        ("Qwen2ForCausalLM", {"sliding_window": 64, "use_sliding_window": False}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 64, "use_sliding_window": True}, 64),
        ("Qwen3ForCausalLM", {"use_sliding_window": True}, 4096),
        ("LlamaForCausalLM", {"sliding_window": 64}, None),
    ],
)
def test_sliding_windows(llama_directory, architecture, changes, expected):
    assert describe(llama_directory(architectures=[architecture], **changes)).sliding_window == expected


def test_a_window_of_null_is_none(llama_directory):
    directory = llama_directory(architectures=["MistralForCausalLM"])
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sliding_window": None}))
    assert describe(directory).sliding_window is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_keys_that_are_missing_mean_what_transformers_means(architecture):
    import transformers

    theirs = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
    for key, value in ARCHITECTURES[architecture].items():
        assert inspect.signature(theirs).parameters[key].default == value


def test_weights_only_if_wanted(llama_directory):
    directory = llama_directory()
    (directory / "model.safetensors").unlink()
    assert describe_directory(directory, "m", weights=False).num_parameters == 0
    with pytest.raises(ModelError, match="safetensors"):
        describe(directory)


@pytest.mark.parametrize("scaled", [False, True])
def test_what_transformers_writes(tmp_path, scaled):
    from transformers import LlamaConfig

    rope = {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3} if scaled else None
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, attention_bias=True, rope_parameters=rope
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    model = describe_directory(tmp_path, "m", weights=False)
    assert (model.hidden_size, model.num_kv_heads, model.head_dim, model.attention_bias) == (64, 2, 16, True)
    assert model.rms_norm_eps == config.rms_norm_eps
    assert model.rope_theta == config.rope_parameters["rope_theta"]
    assert model.rope_scaling == (RopeScaling(**LLAMA3) if scaled else None)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == model.vocab_size
