"""Names and shapes of each family's weights, against transformers and the gguf package."""

import gguf
import msgspec
import pytest
from tiny_models import FAMILIES, GGUF_ARCHITECTURES

from actorlm.checkpoint.config_json import ARCHITECTURES, describe_directory
from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import ModelError
from actorlm.layers.arena import Arena
from actorlm.models import registry
from actorlm.models.decoder import Decoder
from actorlm.models.registry import MODELS
from actorlm.partition import Stage

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
    stage = Stage(range(description.num_layers), is_first=True, is_last=True)
    return Decoder(registry.family(description.architecture), description, Arena("float32"), stage)


CHANGES = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"attention_bias": True},
}


@pytest.fixture(params=[(family, tied, changed) for family in FAMILIES for tied in (False, True) for changed in (0, 1)])
def pair(request, tmp_path):
    """Ours with empty weights and theirs, and the family."""
    family, tied, changed = request.param
    changes = CHANGES[family] if changed else {}
    theirs = FAMILIES[family](tmp_path, num_hidden_layers=2, tie_word_embeddings=tied, **changes)
    description = describe_directory(tmp_path, "tiny", weights=True)
    return whole(description), theirs, family


def test_safetensors_names_and_shapes_are_those_of_transformers(pair):
    ours, theirs, _ = pair
    found = {p.name: tuple(p.destination.shape) for p in ours.parameters("safetensors")}
    assert found == {name: tuple(p.shape) for name, p in theirs.named_parameters()}


def test_gguf_names_are_those_of_its_package(pair):
    ours, _, family = pair
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == GGUF_ARCHITECTURES[family])
    known = gguf.get_tensor_name_map(architecture, 2)
    for hub, packed in zip(ours.parameters("safetensors"), ours.parameters("gguf"), strict=True):
        assert known.get_name(hub.name, (".weight", ".bias")) == packed.name
        assert hub.destination.data_ptr() == packed.destination.data_ptr()


def test_every_row_of_the_registry_can_be_imported_and_described():
    for name in MODELS:
        whole(msgspec.structs.replace(DESCRIPTION, architecture=name))
    assert list(MODELS) == list(ARCHITECTURES)


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ModelError, match="MambaForCausalLM is not supported; supported: LlamaForCausalLM"):
        registry.family("MambaForCausalLM")
