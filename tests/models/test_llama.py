"""Names and shapes of the Llama family's weights, against transformers and the gguf package."""

import gguf
import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import ModelError
from actorlm.layers.arena import Arena
from actorlm.models.llama import build
from actorlm.models.registry import MODELS, builder
from actorlm.partition import stage

DESCRIPTION = ModelDescription(
    path="",
    format="safetensors",
    name="tiny",
    architecture="LlamaForCausalLM",
    vocab_size=50,
    max_model_len=64,
    bos_token_id=None,
    eos_token_ids=(),
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
)


def whole(description):
    return build(description, Arena(torch.float32), stage(description, 1, 0))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_safetensors_names_and_shapes_are_those_of_transformers(tied, biases):
    description = msgspec.structs.replace(DESCRIPTION, tie_word_embeddings=tied, attention_bias=biases, mlp_bias=biases)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
        attention_bias=biases,
        mlp_bias=biases,
    )
    ours = {p.name: tuple(p.destination.shape) for p in whole(description).parameters("safetensors")}
    assert ours == {name: tuple(p.shape) for name, p in LlamaForCausalLM(config).named_parameters()}


def test_gguf_names_are_those_of_its_package():
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    model = whole(DESCRIPTION)
    for hub, packed in zip(model.parameters("safetensors"), model.parameters("gguf"), strict=True):
        assert known.get_name(hub.name, (".weight",)) == packed.name
        assert hub.destination.data_ptr() == packed.destination.data_ptr()


def test_every_row_of_the_registry_can_be_imported():
    for name in MODELS:
        builder(name)(DESCRIPTION, Arena(torch.float32), stage(DESCRIPTION, 1, 0))


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ModelError, match="MambaForCausalLM is not supported; supported: LlamaForCausalLM"):
        builder("MambaForCausalLM")
