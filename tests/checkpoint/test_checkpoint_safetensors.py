"""Weights are found, counted by their headers, and refused when anything of them is missing."""

import json
import struct

import pytest
from checkpoint_files import safetensors_bytes

from actorlm.checkpoint.safetensors import check_weights
from actorlm.errors import ModelError


@pytest.fixture
def sharded(tmp_path):
    (tmp_path / "model-1.safetensors").write_bytes(safetensors_bytes({"a": (4, 8)}))
    (tmp_path / "model-2.safetensors").write_bytes(safetensors_bytes({"b": (3,), "c": (2, 2)}))
    index = {
        "metadata": {},
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_one_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": (4, 8), "b": (3,)}))
    assert check_weights(tmp_path) == ((tmp_path / "model.safetensors",), 35, 140)


def test_shards_are_counted_together_in_order(sharded):
    weights = check_weights(sharded)
    assert [path.name for path in weights.paths] == ["model-1.safetensors", "model-2.safetensors"]
    assert weights.num_parameters == 39
    assert weights.num_bytes == 156


def test_a_cut_off_shard_is_named_with_both_sizes(sharded):
    path = sharded / "model-2.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(ModelError, match=rf"model-2\.safetensors has {len(whole) - 5} bytes.*describes {len(whole)};"):
        check_weights(sharded)


def test_any_cut_is_found(tmp_path):
    path = tmp_path / "model.safetensors"
    whole = safetensors_bytes({"a": (2,)})
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            check_weights(tmp_path)


def test_a_missing_shard(sharded):
    (sharded / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"cannot read .*model-1\.safetensors: No such file"):
        check_weights(sharded)


def test_a_tensor_that_the_index_promises(sharded):
    (sharded / "model-2.safetensors").write_bytes(safetensors_bytes({"b": (3,)}))
    with pytest.raises(ModelError, match="lacks the tensor c"):
        check_weights(sharded)


def test_no_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="must be in safetensors format"):
        check_weights(tmp_path)


def test_a_shard_outside_of_the_directory(tmp_path):
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="must lie in the same directory"):
        check_weights(tmp_path)


@pytest.mark.parametrize(
    "header",
    [b"not json!", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1]}}', b'{"a": "\xff"}'],
)
def test_damaged_headers(tmp_path, header):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelError, match="is damaged"):
        check_weights(tmp_path)


def test_a_damaged_index(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": [')
    with pytest.raises(ModelError, match=r"index\.json is damaged"):
        check_weights(tmp_path)
