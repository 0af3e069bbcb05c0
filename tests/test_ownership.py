"""Files that others may change, replace or read are not trusted."""

import os

import pytest

from actorlm import ownership
from actorlm.errors import ConfigError
from actorlm.ownership import check_above, check_secret, check_trusted


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "file"
    made.write_text("x")
    made.chmod(0o600)
    return made


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o444])
def test_what_only_we_may_write_is_trusted(file, mode):
    file.chmod(mode)
    check_trusted(file)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_may_write_is_not(file, mode):
    file.chmod(mode)
    with pytest.raises(ConfigError, match="written by others; run: chmod go-w"):
        check_trusted(file)


def test_what_belongs_to_somebody_else_is_not(file, monkeypatch):
    monkeypatch.setattr(ownership.os, "getuid", lambda: 12_345)
    if os.geteuid() == 0:  # what belongs to the super-user is trusted
        os.chown(file, 4321, -1)
    with pytest.raises(ConfigError, match="belongs to user"):
        check_trusted(file)


@pytest.mark.parametrize(("mode", "trusted"), [(0o755, True), (0o775, False), (0o777, False), (0o1777, True)])
def test_nobody_may_put_another_one_in_its_place(file, tmp_path, mode, trusted):
    tmp_path.chmod(mode)
    try:
        if trusted:
            check_above(file)
        else:
            with pytest.raises(ConfigError, match="not sticky"):
                check_trusted(file)
    finally:
        tmp_path.chmod(0o700)


def test_a_link_is_as_good_as_what_it_leads_to(file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(file)
    check_trusted(link)
    file.chmod(0o666)
    with pytest.raises(ConfigError):
        check_trusted(link)


def test_a_secret_is_not_for_everybody(file):
    file.chmod(0o640)
    check_secret(file)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod o-r"):
        check_secret(file)


def test_what_is_not_there_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        check_trusted(tmp_path / "nothing")
