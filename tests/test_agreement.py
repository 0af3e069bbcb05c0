"""What all hosts must have alike."""

import msgspec
import pytest
import tiny_llama as tiny

from actorlm.agreement import difference, facts
from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.resolve import resolve
from actorlm.config import Config


def _model(path):
    resolved = resolve(str(path), null=False, progress=lambda *_: None)
    return describe(resolved, served_model_name="m", max_model_len=None, sampling_defaults=True, weights=True)


def _config(**sections):
    hosts = {"a": {"address": "10.0.0.1", "devices": [0]}, "b": {"address": "10.0.0.2", "devices": [0]}}
    return msgspec.convert({"hosts": hosts} | sections, Config)


@pytest.fixture
def model(tmp_path):
    return _model(tiny.write(tmp_path / "one"))


def test_the_same_options_and_model_agree_wherever_the_model_lies(model, tmp_path):
    assert facts(_config(), model) == facts(_config(), _model(tiny.write(tmp_path / "two")))
    assert difference(facts(_config(), model), facts(_config(), model)) == ""


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"parallel": {"tensor": 2}}, "parallel.tensor is 2 there and 1 on the lead"),
        ({"parallel": {"data": 2}}, "parallel.data is 2 there and 1 on the lead"),
        ({"cache": {"kv_cache_dtype": "int8"}}, "cache.kv_cache_dtype is int8 there and auto on the lead"),
        ({"model": {"dtype": "bfloat16"}}, "model.dtype is bfloat16 there and auto on the lead"),
        ({"http": {"detokenizers": 3}}, "http.detokenizers is 3 there and 1 on the lead"),
        ({"scheduler": {"max_num_seqs": 4}}, "scheduler.max_num_seqs is 4 there and 256 on the lead"),
        ({"hosts": {"a": {"address": "10.0.0.1"}}}, "hosts.b.address is missing there and 10.0.0.2 on the lead"),
        ({"sockets": {"ports": "1-2"}}, "sockets.ports is 1-2 there and 7000-7099 on the lead"),
    ],
)
def test_a28_the_first_difference_is_named_with_both_values(model, theirs, said):
    assert difference(facts(_config(), model), facts(_config(**theirs), model)) == said


def test_a28_another_version_is_named(model):
    ours = facts(_config(), model)
    assert difference(ours, ours | {"version": "9"}).startswith("version is 9 there and ")


@pytest.mark.parametrize("own", [{"http": {"port": 1, "api_key": "k"}}, {"parallel": {"threads": 3}}])
def test_what_each_host_may_have_of_its_own_is_not_compared_and_no_key_is_told(model, own):
    assert facts(_config(**own), model) == facts(_config(), model)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a28_another_file_of_the_model_is_named(model, tmp_path, name):
    path = tiny.write(tmp_path / "two")
    (path / name).write_text((path / name).read_text() + "\n")
    assert difference(facts(_config(), model), facts(_config(), _model(path))).startswith(f"model.file.{name} is ")
