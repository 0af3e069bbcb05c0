"""Weights from safetensors (whole and sharded) and from GGUF: slices, re-ordered heads, refusals."""

from contextlib import ExitStack

import gguf
import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_families import DESCRIPTION, whole

from actorlm.errors import ModelError
from actorlm.layers.weight import Cut
from actorlm.models import weights
from actorlm.models.weights import Parameter, SafetensorsSource, fill, load_weights


def llama(seed=None, **changes):
    """A model; filled with random numbers if there is a seed."""
    description = msgspec.structs.replace(DESCRIPTION, **changes)
    model = whole(description)
    if seed is not None:
        torch.manual_seed(seed)
    for parameter in model.parameters("gguf"):
        parameter.destination.normal_() if seed is not None else parameter.destination.fill_(torch.nan)
    return model


def halves(rows, size=DESCRIPTION.head_dim):
    """Our order of a head's rows to that of the hub, as its conversion to GGUF undoes it."""
    return rows.view(-1, size // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def hub_tensors(model):
    return {
        p.name: (halves(p.destination) if "q_proj" in p.name or "k_proj" in p.name else p.destination).clone()
        for p in model.parameters("safetensors")
    }


def assert_equal_weights(loaded, model):
    pairs = zip(loaded.parameters("gguf"), model.parameters("gguf"), strict=True)
    assert all(torch.equal(ours.destination, theirs.destination) for ours, theirs in pairs)


def load(path, form="safetensors", progress=lambda done, total: None, **changes):
    description = msgspec.structs.replace(DESCRIPTION, path=str(path), format=form, **changes)
    model = llama(**changes)
    load_weights(description, model.parameters("gguf" if form == "gguf" else "safetensors"), progress)
    return model


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}])
def test_safetensors(tmp_path, changes):
    model = llama(1, **changes)
    save_file(hub_tensors(model), tmp_path / "model.safetensors")
    seen = []
    assert_equal_weights(load(tmp_path, progress=lambda *pair: seen.append(pair), **changes), model)
    total = sum(p.destination.nbytes for p in model.parameters("gguf"))
    assert seen[-1] == (total, total)


def test_sharded_safetensors_in_another_dtype(tmp_path):
    model = llama(2)
    tensors = {name: tensor.bfloat16() for name, tensor in hub_tensors(model).items()}
    for parameter in model.parameters("gguf"):
        parameter.destination.copy_(parameter.destination.bfloat16())
    names = list(tensors)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, some in shards.items():
        save_file({name: tensors[name] for name in some}, tmp_path / file)
    index = {"weight_map": {name: file for file, some in shards.items() for name in some}}
    (tmp_path / "model.safetensors.index.json").write_bytes(msgspec.json.encode(index))
    assert_equal_weights(load(tmp_path), model)


def test_gguf(tmp_path):
    model = llama(3)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for parameter in model.parameters("gguf"):
        writer.add_tensor(parameter.name, parameter.destination.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_equal_weights(load(tmp_path / "m.gguf", "gguf"), model)


def test_the_conversion_to_gguf_makes_our_order_of_heads():
    """The permutation of llama.cpp's converter, as it is written there."""
    rows, heads, size = torch.arange(48.0)[:, None].expand(48, 3), 6, 8
    converted = rows.reshape(heads, 2, size // 2, 3).swapaxes(1, 2).reshape(rows.shape)
    destination = torch.empty(48, 3)
    fill(InMemory(w=rows), [Parameter("w", destination, halved_heads=size)], lambda done, total: None)
    assert torch.equal(destination, converted)


class InMemory:
    """A source that notes what was read."""

    def __init__(self, **tensors):
        self.tensors = tensors
        self.read_rows = []

    def shape(self, name):
        return tuple(self.tensors[name].shape) if name in self.tensors else None

    def read(self, name, rows, columns):
        self.read_rows.append((rows.start, rows.stop))
        return self.tensors[name][rows] if columns is None else self.tensors[name][rows, columns]


@pytest.mark.parametrize(("head", "slices"), [(None, [(0, 5), (5, 10), (10, 12)]), (4, [(0, 4), (4, 8), (8, 12)])])
def test_large_tensors_are_read_in_slices_of_whole_heads(monkeypatch, head, slices):
    monkeypatch.setattr(weights, "MAX_SLICE_BYTES", 5 * 3 * 4)
    source = InMemory(w=torch.randn(12, 3))
    destination, done = torch.empty(12, 3), []
    fill(source, [Parameter("w", destination, halved_heads=head)], lambda *pair: done.append(pair))
    assert source.read_rows == slices
    assert done == [(stop * 12, 144) for _, stop in slices]
    if head:
        assert torch.equal(halves(destination, head), source.tensors["w"])
    else:
        assert torch.equal(destination, source.tensors["w"])


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (None, lambda whole: whole),
        (Cut(0, range(4, 8), 12), lambda whole: whole[4:8]),
        (Cut(1, range(3, 5), 6), lambda whole: whole[:, 3:5]),
    ],
)
def test_a_rank_reads_its_part_alone(monkeypatch, cut, expected):
    monkeypatch.setattr(weights, "MAX_SLICE_BYTES", 4 * 3 * 4)
    whole = torch.randn(12, 6)
    source, part = InMemory(w=whole), expected(whole)
    destination = torch.empty(part.shape)
    fill(source, [Parameter("w", destination, cut=cut)], lambda done, total: None)
    assert torch.equal(destination, part)
    rows = {row for start, stop in source.read_rows for row in range(start, stop)}
    assert rows == set(cut.part if cut and cut.dimension == 0 else range(12))
    with pytest.raises(ModelError, match=r"w has shape \(12, 6\); the model needs"):
        fill(source, [Parameter("w", destination, cut=Cut(0, range(1), 13))], lambda done, total: None)


def test_a_missing_tensor_and_another_shape_are_named_before_anything_is_read():
    source = InMemory(w=torch.zeros(2, 3))
    good = Parameter("w", torch.full((2, 3), 7.0))
    with pytest.raises(ModelError, match=r"no tensor other\.weight"):
        fill(source, [good, Parameter("other.weight", torch.empty(1))], lambda done, total: None)
    with pytest.raises(ModelError, match=r"w has shape \(2, 3\); the model needs \(3, 2\)"):
        fill(source, [good, Parameter("w", torch.empty(3, 2))], lambda done, total: None)
    assert source.read_rows == []


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ModelError):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(tmp_path)
    with pytest.raises(ModelError, match="null"):
        load(tmp_path, "bytes")


def test_only_the_rows_asked_for_are_read(tmp_path):
    save_file({"w": torch.arange(20.0).view(10, 2)}, tmp_path / "model.safetensors")
    with ExitStack() as stack:
        source = SafetensorsSource(str(tmp_path), stack)
        assert source.shape("w") == (10, 2)
        assert source.shape("x") is None
        assert torch.equal(source.read("w", slice(3, 5), None), load_file(tmp_path / "model.safetensors")["w"][3:5])
        assert source.bytes_read == 2 * 2 * 4
        assert source.read("w", slice(3, 5), slice(1, 2)).tolist() == [[7.0], [9.0]]
        assert source.bytes_read == 2 * 2 * 4 + 2 * 4
