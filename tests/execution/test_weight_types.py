"""Each form of weights gives what its oracle gives: the same model with products in plain torch."""

import pytest
import torch
from driving import Driver, make_runner, make_tiny, random_prompts, step_logits, weight_type
from tiny_models import FAMILIES, write_gguf

from actorlm.checkpoint.gguf_metadata import describe_gguf
from actorlm.errors import ConfigError, ModelError
from actorlm.kernels import linear_blocks, linear_int8
from actorlm.kernels.file_matrix import FileMatrix
from actorlm.kernels.linear_blocks import BlockMatrix
from actorlm.kernels.linear_int8 import Int8Matrix
from actorlm.kernels.native import choose_level

pytestmark = pytest.mark.skipif(choose_level("auto") is None, reason="there are no compiled kernels")

PROMPTS = random_prompts(5, 33, 7, 60)


@pytest.fixture(scope="module")
def safetensors(tmp_path_factory):
    return make_tiny("grouped-tied", tmp_path_factory.mktemp("safetensors"))[1]


def quantized(directory, family="llama", type_of=weight_type, **changes):
    """A model whose GGUF file has matrices of these types."""
    model = FAMILIES[family](directory / "hub", num_hidden_layers=2, **changes)
    write_gguf(family, model, directory / "tiny.gguf", type_of)
    return describe_gguf(directory / "tiny.gguf", family)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def packed(request, tmp_path_factory):
    """Qwen2's heads are re-ordered when they are read."""
    return quantized(tmp_path_factory.mktemp(request.param), request.param, intermediate_size=128)


def logits_of(description, **changes):
    """Of each prompt's tokens, in a step of its own for each prompt: products of 7 to 60 rows, and one by one after."""
    runner = make_runner(description, kernels="native", **changes)
    driver, parts = Driver(runner, 128), []
    for slot, prompt in enumerate(PROMPTS):
        driver.add(slot, [*prompt, 0])
        parts.extend(step_logits(driver, [(slot, len(prompt) - 1)]))
        parts.extend(step_logits(driver, [(slot, 1)]))
    return torch.cat(parts)


def with_oracle(monkeypatch, matrix, multiply):
    """Products by the oracle. They are no launches, so that no step may be repeated."""
    monkeypatch.setattr(matrix, "multiply", multiply)
    monkeypatch.setattr("actorlm.models.stack.MAX_TOKENS", 0)


def test_int8_has_the_bits_of_its_oracle(safetensors, monkeypatch):
    made, calls = logits_of(safetensors, weights="int8"), []

    def multiply(self, out, x, bias, *, adds):
        calls.append(x)
        linear_int8.reference(out, x, self.whole(), self.scale_o[: self.shape[0]], bias, adds=adds)

    with_oracle(monkeypatch, Int8Matrix, multiply)
    assert torch.equal(logits_of(safetensors, weights="int8"), made)
    assert len(calls) > 0
    difference = (made - logits_of(safetensors, weights="float32")).abs().max()
    assert 1e-3 < difference < 1  # of logits up to 10


def test_blocks_are_within_a_hair_of_their_oracle(packed, monkeypatch):
    made = logits_of(packed, weights="gguf")

    def multiply(self, out, x, bias, *, adds):
        linear_blocks.reference(out, x, self.unpacked(), bias, adds=adds)

    with_oracle(monkeypatch, BlockMatrix, multiply)
    expected = logits_of(packed, weights="gguf")
    assert (made - expected).abs().max() < 2e-3
    assert torch.equal(made.argmax(-1), expected.argmax(-1))


def test_blocks_hold_the_files_numbers(packed):
    """Whichever way a matrix is stacked of tensors, and heads are re-ordered."""
    plain, blocks = (make_runner(packed, kernels="native", weights=form) for form in ("float32", "gguf"))
    pairs = zip(plain.model.parameters("gguf"), blocks.model.parameters("gguf"), strict=True)
    matrices = [(a, b) for a, b in pairs if len(a.destination.shape) == 2]
    assert len(matrices) > 10
    for one, other in matrices:
        assert torch.equal(other.destination.read(), one.destination.read()), one.name
    kinds = {run.kind for layer in blocks.model._layers for run in layer.attention.qkv.weight.runs}
    assert kinds == {"Q4_0", "Q8_0"}


def test_a_file_without_blocks_may_stay_as_it_is(tmp_path):
    """Float32 and float16 tensors are matrices of these types."""
    description = quantized(tmp_path, type_of=lambda name: "F16" if "ffn" in name else "F32")
    assert torch.equal(logits_of(description, weights="gguf"), logits_of(description, weights="float32"))


def test_gguf_matrices_take_the_files_memory(packed):
    runner = make_runner(packed, kernels="native", weights="gguf")
    matrix = runner.model._embedding.weight
    assert isinstance(matrix, FileMatrix)
    rows, columns = matrix.shape
    assert matrix.runs[0].matrix.panels.nbytes == -(-rows // 16) * 16 * columns // 32 * 34


@pytest.mark.parametrize("form", ["int8", "gguf"])
def test_plain_torch_has_floats_only(packed, form):
    with pytest.raises(ConfigError, match=f"--weights {form} needs the compiled kernels"):
        make_runner(packed, kernels="torch", weights=form)


def test_a_type_that_cannot_stay_is_named(tmp_path, monkeypatch):
    """Q5_K is read, but not computed with."""
    monkeypatch.delitem(linear_blocks.FORMS, "Q4_0")
    monkeypatch.setattr("actorlm.models.weights.KINDS", ("Q8_0", "F32"))
    with pytest.raises(ModelError, match=r"blk.0.attn_q.weight has type Q4_0, which cannot.*Q8_0, F32 can.*int8"):
        make_runner(quantized(tmp_path, intermediate_size=128), kernels="native", weights="gguf")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tensor_ranks_keep_whole_blocks(tmp_path, family, ranks):
    """A share of columns begins with a block: then inputs are quantised as on one rank."""
    description = quantized(tmp_path, family, intermediate_size=128)
    prompts = [prompt[:20] for prompt in PROMPTS]
    expected = Driver(make_runner(description, kernels="native", weights="gguf"), 128).generate(prompts, 8)
    assert Driver(ranks(description, 2, kernels="native", weights="gguf"), 128).generate(prompts, 8) == expected


def test_a_share_that_begins_inside_a_block_is_refused(tmp_path, ranks):
    description = quantized(
        tmp_path, intermediate_size=112, type_of=lambda name: "Q4_0" if "down" not in name else "F32"
    )
    with pytest.raises(ModelError, match=r"blk.0.attn_output.weight has blocks of 32 columns .*use another --tp"):
        ranks(description, 4, kernels="native", weights="gguf")
