"""Layers: stacked matrices, rotation angles, embeddings."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from actorlm.checkpoint.description import RopeScaling
from actorlm.kernels.attention_variant import PLAIN, AttentionVariant
from actorlm.kernels.backend import choose_backend
from actorlm.kernels.native import runnable_levels
from actorlm.layers.activations import Activations
from actorlm.layers.arena import Arena
from actorlm.layers.attention import Attention
from actorlm.layers.embedding import Embedding
from actorlm.layers.linear import ColumnParallel, Features, RowParallel
from actorlm.layers.mlp import MAX_ROWS, GatedMLP
from actorlm.layers.rotary import Rotary
from actorlm.parallel.group import Alone


def filled(layer):
    torch.manual_seed(0)
    for weight in layer.parameters():
        numbers = torch.randn(weight.destination.shape)
        if isinstance(weight.destination, torch.Tensor):
            weight.destination.copy_(numbers)
        else:
            weight.destination.put(0, numbers)
    return {weight.name: numbers_of(weight.destination) for weight in layer.parameters()}


def numbers_of(destination):
    return destination if isinstance(destination, torch.Tensor) else destination.read()


KERNELS = ["torch", pytest.param("native", marks=pytest.mark.skipif(not runnable_levels(), reason="none compiled"))]


def whole(count):
    return Features(count, range(count))


@pytest.mark.parametrize("bias", [False, True])
def test_stacked_matrices_are_one_product(bias):
    layer = ColumnParallel({"a": whole(3), "b": whole(5)}, 4, bias=bias, arena=Arena("float32"))
    parts = filled(layer)
    assert list(parts) == (["a.weight", "a.bias", "b.weight", "b.bias"] if bias else ["a.weight", "b.weight"])
    x, out = torch.randn(2, 4), torch.empty(2, 8)
    layer.write_to(out, x)
    expected = torch.cat([x @ parts[f"{n}.weight"].t() + parts.get(f"{n}.bias", 0.0) for n in "ab"], dim=1)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_added(bias):
    layer = RowParallel("a", whole(4), 8, bias=bias, arena=Arena("float32"))
    parts = filled(layer)
    x, total = torch.randn(2, 4), torch.ones(2, 8)
    layer.add_to(total, x, None)
    torch.testing.assert_close(total, x @ parts["a.weight"].t() + parts.get("a.bias", 0.0) + 1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 3, MAX_ROWS, 2 * MAX_ROWS + 3])
@pytest.mark.parametrize("kernels", KERNELS)
def test_the_gated_mlp_is_its_formula(bias, rows, kernels):
    mlp = GatedMLP(6, 10, bias=bias, arena=Arena("float32", choose_backend("cpu", kernels, 1)))
    w = filled(mlp)
    x, total = torch.randn(rows, 6), torch.ones(rows, 6)
    mlp.add_to(total, x, Activations(None, None, None, mlp.gates(rows)))
    gate, up = (x @ w[f"{n}.weight"].t() + w.get(f"{n}.bias", 0.0) for n in ("gate", "up"))
    down = (gate.sigmoid() * gate * up) @ w["down.weight"].t() + w.get("down.bias", 0.0)
    torch.testing.assert_close(total, down + 1)


@pytest.mark.parametrize("kernels", KERNELS)
def test_only_native_kernels_of_one_machine_take_a_long_prompt_in_pieces(kernels):
    """Elsewhere each piece would cost: a launch on a GPU, a message to the other ranks."""

    class Far(Alone):
        launches = False

    backend = choose_backend("cpu", kernels, 1)
    sizes = [
        len(GatedMLP(6, 10, bias=False, arena=Arena("float32", backend, group)).gates(300).flat_TX)
        for group in (Alone(), Far())
    ]
    assert sizes == ([MAX_ROWS, 300] if kernels == "native" else [300, 300])


def test_attention_has_a_sink_for_each_head_only_if_asked():
    def made(**options):
        return Attention(8, 4, 2, 4, qkv_bias=False, output_bias=False, arena=Arena("float32"), **options)

    assert made().variant is PLAIN
    assert "sinks.weight" not in filled(made())
    layer = made(variant=AttentionVariant(window=3), sinks=True)
    assert layer.variant.window == 3
    assert filled(layer)["sinks.weight"] is layer.variant.sinks_n
    assert layer.variant.sinks_n.shape == (4,)


SCALING = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=256)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


@pytest.mark.parametrize(("scaling", "parameters"), [(None, {"rope_type": "default"}), (SCALING, LLAMA3)])
def test_angles_are_those_of_transformers(scaling, parameters):
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 5000.0, **parameters},
    )
    positions = torch.tensor([0, 1, 2, 77, 2047])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    rotation = Rotary(64, 5000.0, scaling, torch.device("cpu"))(positions)[:, 0]
    torch.testing.assert_close(rotation.real, cos[0, :, :32], atol=1e-4, rtol=0)
    torch.testing.assert_close(rotation.imag, sin[0, :, :32], atol=1e-4, rtol=0)


def test_the_scaled_angles_differ():
    positions = torch.tensor([100])
    assert (
        Rotary(64, 5000.0, SCALING, torch.device("cpu"))(positions)
        - Rotary(64, 5000.0, None, torch.device("cpu"))(positions)
    ).abs().max() > 0.1


def test_an_embedding_is_a_head_too():
    embedding = Embedding("embedding", 5, 3, Arena("float32"))
    weight = filled(embedding)["embedding.weight"]
    vectors = embedding(torch.tensor([4, 0, 4]))
    assert torch.equal(vectors, weight[[4, 0, 4]])
    vectors.zero_()
    assert weight[4].any(), "a new tensor"
    x = torch.randn(2, 3)
    torch.testing.assert_close(embedding.logits(x), x @ weight.t())


def test_logits_are_float32():
    embedding = Embedding("embedding", 5, 3, Arena("bfloat16"))
    filled(embedding)
    assert embedding.logits(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype is torch.float32
