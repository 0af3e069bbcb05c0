"""Compiling the native kernels, finding them, and doing without."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from native_levels import on_all_levels

from actorlm.errors import ConfigError
from actorlm.kernels import native as native_module
from actorlm.kernels.build import HERE, BuildFailed, build, find_compiler, library_path, sources
from actorlm.kernels.native import choose_level, describe_choice


@pytest.fixture
def elsewhere(tmp_path):
    """A directory with two sources that compile at once."""
    (tmp_path / "one.cpp").write_text('extern "C" int one() { return 1; }')
    (tmp_path / "two.h").write_text("#pragma once")
    return tmp_path


@pytest.fixture
def no_libraries(monkeypatch, tmp_path):
    monkeypatch.setattr(native_module, "library_path", lambda level: tmp_path / level)


def test_without_a_compiler_the_build_says_what_was_sought(elsewhere):
    with pytest.raises(BuildFailed, match=r"no C\+\+ compiler: CXX is not set, and none of c\+\+, g\+\+, clang\+\+"):
        build({"PATH": str(elsewhere)}, elsewhere)
    assert list(elsewhere.glob("*.so")) == []


def test_the_compiler_may_be_named_with_arguments():
    assert find_compiler({"CXX": "ccache 'my g++' -v", "PATH": ""}) == ["ccache", "my g++", "-v"]


@pytest.mark.parametrize(("command", "complaint"), [("false", "false failed"), ("/no/such/compiler", "cannot run")])
def test_a_compiler_that_fails_is_named(elsewhere, command, complaint):
    with pytest.raises(BuildFailed, match=complaint):
        build({"CXX": command}, elsewhere)
    assert list(elsewhere.glob("_native_*")) == []


def test_only_what_is_missing_is_compiled_and_what_is_old_goes(elsewhere):
    compiler = elsewhere / "compiler"
    compiler.write_text(
        f'#!{sys.executable}\nimport sys\nopen(sys.argv[sys.argv.index("-o") + 1], "w").write("made")\n'
    )
    compiler.chmod(0o755)
    made = build({"CXX": str(compiler)}, elsewhere)
    assert [path.read_text() for path in made] == ["made"] * len(made)
    assert build({"CXX": "/no/such/compiler"}, elsewhere) == made
    (elsewhere / "two.h").write_text("#pragma once\n")
    again = build({"CXX": str(compiler)}, elsewhere)
    assert not set(made) & set(again)
    assert sorted(elsewhere.glob("_native_*")) == sorted(again)


def test_the_digest_covers_every_source():
    assert {path.suffix for path in sources()} == {".cpp", ".h"}
    assert {path.stem for path in HERE.glob("*.cpp")} >= {"linear", "paged_attention", "pool"}


def test_without_libraries_torch_runs_or_the_start_is_refused(no_libraries):
    assert choose_level("auto") is None
    assert "slower" in describe_choice("auto")
    assert describe_choice("torch") == "plain torch"
    with pytest.raises(ConfigError, match=r"no compiled kernels.*actorlm\.kernels\.build"):
        choose_level("native")


@pytest.mark.skipif(not library_path("portable").exists(), reason="there are no compiled kernels")
def test_with_libraries_the_best_one_runs():
    level = choose_level("native")
    assert level == choose_level("auto")
    assert describe_choice("auto") == f"native, {level}"
    assert choose_level("torch") is None


@on_all_levels
def test_threads_end_with_their_kernels(native):
    """And none of them is Python's."""

    def count():
        return len(list(Path("/proc/self/task").iterdir()))

    before, python = count(), threading.active_count()
    more = native_module.Native(native.level, threads=5)
    assert count() == before + 4
    assert threading.active_count() == python
    del more
    assert count() == before


def test_nothing_here_imports_torch():
    code = "import sys, actorlm.kernels.native; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
