"""What a model's name means: first what is on disk, then short names, then the hub."""

from pathlib import Path

import pytest

from actorlm.checkpoint.resolve import ResolvedModel, hub_snapshot, resolve
from actorlm.errors import ModelError


def no_network(*_args, **_kwargs):
    raise AssertionError("the network was asked")


def find(model, *, null=False, pull_model=no_network, fetch_snapshot=no_network):
    return resolve(model, null=null, progress=lambda *_: None, pull_model=pull_model, fetch_snapshot=fetch_snapshot)


def test_nothing_with_the_null_model_is_the_byte_vocabulary():
    assert find(None, null=True) == ResolvedModel("", "bytes", "null")


@pytest.mark.parametrize("model", [None, "smollm2-135m"])
def test_the_default_model_is_pulled(model):
    def pulled(name, *, progress):
        return Path("/cache") / f"{name}.gguf"

    assert find(model, pull_model=pulled) == ResolvedModel("/cache/smollm2-135m.gguf", "gguf", "smollm2-135m")


def test_a_directory_and_a_file(tmp_path, monkeypatch):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "small.gguf").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("my-model", "./my-model/", str(tmp_path / "my-model")):
        assert find(name) == ResolvedModel(str(tmp_path / "my-model"), "safetensors", "my-model")
    assert find("small.gguf", null=True) == ResolvedModel(str(tmp_path / "small.gguf"), "gguf", "small")


def test_a_directory_comes_before_a_short_name(tmp_path, monkeypatch):
    (tmp_path / "smollm2-135m").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find("smollm2-135m").format == "safetensors"


def test_another_kind_of_file(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match=r"a file but no \.gguf file"):
        find(str(tmp_path / "model.bin"))


@pytest.mark.parametrize(
    "name", ["./nosuch", "/no/such", "~/nosuch", "nosuch.gguf", "org/nosuch.gguf", "a/b/c", "dir/"]
)
def test_a_missing_path_fails_without_asking_the_hub(name):
    with pytest.raises(ModelError, match=f"there is no model at {name}"):
        find(name)


def test_a_hub_id():
    found = find("org/name", fetch_snapshot=lambda model: f"/hub/{model}")
    assert found == ResolvedModel("/hub/org/name", "safetensors", "org/name")


def test_a_single_word_is_no_hub_id():
    with pytest.raises(ModelError, match=r"neither a file, nor a directory, nor a known short name \(smollm2-135m\)"):
        resolve("nosuch", null=False, progress=lambda *_: None)


@pytest.mark.parametrize("error", [OSError("Name or service not known\nmore"), ValueError("bad id")])
def test_an_unreachable_hub_says_what_to_do(monkeypatch, error):
    import huggingface_hub

    asked = {}

    def snapshot_download(model, **options):
        asked.update(options, model=model)
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(
        ModelError, match=r"could not be fetched from the Hugging Face hub: (Name or service|bad id)"
    ) as caught:
        hub_snapshot("org/name")
    assert "or name a model directory" in caught.value.message
    assert "\n" not in caught.value.message
    assert asked["model"] == "org/name"
    assert not any("bin" in pattern or "*.py" in pattern for pattern in asked["allow_patterns"])
