"""Run directories: private, found while their tree lives, swept afterwards."""

import os
import stat

import pytest

from actorlm import instance
from actorlm.errors import ConfigError


@pytest.fixture
def bases(tmp_path, monkeypatch):
    candidates = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(instance, "runtime_directories", lambda: candidates)
    monkeypatch.setattr(instance, "LONGEST_BASE", 4096)
    return candidates


def test_e06_the_directory_is_ours_alone(bases):
    made = instance.Instance.create()
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(bases[0].stat().st_mode) == 0o700
    made.close()


def test_a19_nothing_is_left_after_a_clean_end(bases):
    instance.Instance.create().close()
    assert not any(base.exists() for base in bases)


def test_a_live_tree_is_found_and_never_swept(bases):
    first, second = instance.Instance.create(), instance.Instance.create()
    assert set(instance.running()) == {first.directory, second.directory}
    first.close()
    assert instance.running() == [second.directory]
    second.close()


def test_a19_a_dead_trees_directory_is_swept_by_the_next_start(bases):
    dead = instance.Instance.create()
    (dead.directory / "socket").touch()
    os.close(dead._lock)  # what the kernel does for a supervisor that was killed
    assert instance.running() == []
    living = instance.Instance.create()
    assert not dead.directory.exists()
    living.close()


def test_e06_a_symbolic_link_is_passed_over(bases, tmp_path):
    bases[0].symlink_to(tmp_path)
    made = instance.Instance.create()
    assert made.directory.parent == bases[1]
    made.close()


def test_a18_a_base_that_is_too_long_is_passed_over(bases, monkeypatch):
    monkeypatch.setattr(instance, "LONGEST_BASE", len(os.fsencode(bases[0])))
    made = instance.Instance.create()
    assert made.directory.parent == bases[0]
    made.close()
    monkeypatch.setattr(instance, "LONGEST_BASE", 1)
    with pytest.raises(ConfigError, match="XDG_RUNTIME_DIR"):
        instance.Instance.create()


def test_a_directory_of_another_user_is_refused(bases, monkeypatch):
    bases[0].mkdir()
    bases[1].mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567)
    with pytest.raises(ConfigError, match="belongs to user"):
        instance.base_directory()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_e06_a_base_that_others_may_replace_is_passed_over(bases, tmp_path, monkeypatch, mode):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    candidates = [shared / "below" / "base", shared / "base", bases[0]]
    candidates[0].parent.mkdir()
    monkeypatch.setattr(instance, "runtime_directories", lambda: candidates)
    assert instance.base_directory() == bases[0]
    shared.chmod(0o1777)  # as /tmp is: everybody makes directories, nobody renames those of others
    assert instance.base_directory() == candidates[0]


def test_e06_only_private_bases_are_looked_into(bases):
    made = instance.Instance.create()
    assert instance.running() == [made.directory]
    bases[0].chmod(0o755)
    assert instance.running() == []
    made.close()
