"""Name and length as the options ask, within what the model can."""

import subprocess
import sys

import pytest

from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.description import SamplingDefaults
from actorlm.checkpoint.resolve import ResolvedModel
from actorlm.errors import ModelError

BYTES = ResolvedModel("", "bytes", "null")


def test_the_byte_vocabulary():
    model = describe(BYTES)
    assert (model.format, model.vocab_size, model.eos_token_ids) == ("bytes", 259, (256, 258))
    assert model.kv_vectors_per_token == 0


def test_name_and_length():
    model = describe(BYTES, served_model_name="mine", max_model_len=64)
    assert (model.name, model.max_model_len) == ("mine", 64)


def test_recommended_sampling_is_dropped_where_it_is_not_wanted(llama_directory):
    resolved = ResolvedModel(str(llama_directory({"temperature": 0.5})), "safetensors", "tiny")
    assert describe(resolved).sampling_defaults.temperature == 0.5
    assert describe(resolved, sampling_defaults=False).sampling_defaults == SamplingDefaults()


def test_a_longer_length_is_refused_with_both_numbers(llama_directory):
    resolved = ResolvedModel(str(llama_directory()), "safetensors", "tiny")
    assert describe(resolved, max_model_len=128).max_model_len == 128
    with pytest.raises(ModelError, match="--max-model-len is 129, but tiny is made for at most 128 tokens"):
        describe(resolved, max_model_len=129)


def test_a_window_that_some_request_would_reach_beyond(llama_directory):
    directory = llama_directory(architectures=["MistralForCausalLM"], sliding_window=64)
    resolved = ResolvedModel(str(directory), "safetensors", "tiny")
    for length in (None, 65):
        with pytest.raises(ModelError, match=r"sliding_window is 64, .* --max-model-len 64,"):
            describe(resolved, max_model_len=length)
    assert describe(resolved, max_model_len=64).max_model_len == 64


@pytest.mark.parametrize("changes", [{"eos_token_id": 64}, {"eos_token_id": [2, -1]}, {"bos_token_id": 99}])
def test_special_tokens_outside_of_the_vocabulary(llama_directory, changes):
    with pytest.raises(ModelError, match=r"special token (64|-1|99) is not among its 64 ids"):
        describe(ResolvedModel(str(llama_directory(**changes)), "safetensors", "tiny"))


def test_each_format_gets_its_name(llama_directory, llama_gguf):
    assert describe(ResolvedModel(str(llama_directory()), "safetensors", "a/b")).name == "a/b"
    assert describe(ResolvedModel(str(llama_gguf()), "gguf", "tiny")).name == "tiny"


def test_describing_imports_nothing_heavy():
    program = (
        "import sys; import actorlm.checkpoint.describe; "
        "print([m for m in ('torch', 'transformers', 'numpy', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
