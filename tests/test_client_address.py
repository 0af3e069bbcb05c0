"""Where a client finds a frontend."""

import pytest

from actorlm import client_address
from actorlm.client_address import frontend_address
from actorlm.errors import ConfigError, Unavailable


def directory_of(tmp_path, name, frontends):
    directory = tmp_path / name
    directory.mkdir()
    for frontend in range(frontends):
        (directory / f"frontend-{frontend}").touch()
    (directory / "balancer").touch()
    return directory


@pytest.fixture
def running(monkeypatch):
    """Sets which trees run."""
    return lambda *directories: monkeypatch.setattr(client_address, "running", lambda: list(directories))


@pytest.mark.parametrize(
    "address",
    ["ipc:///run/x/frontend-0", "tcp://127.0.0.1:7000", "tcp://127.9.9.9:1", "tcp://[::1]:7000", "tcp://localhost:1"],
)
def test_addresses_of_this_machine_are_taken_as_they_are(address):
    assert frontend_address(address) == address


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:7000", "tcp://example.com:1", "tcp://[fd00::1]:7000"])
def test_addresses_beyond_it_are_for_those_who_have_keys(address):
    assert frontend_address(address) == address


@pytest.mark.parametrize("address", ["tcp://*:7000", "tcp://", "tcp://10.0.0.1", "tcp://a:b", "tcp://fd00::1:7000"])
def test_what_is_no_address_is_refused_by_name(address):
    with pytest.raises(ConfigError) as caught:
        frontend_address(address)
    assert address in caught.value.message
    assert "tcp://HOST:PORT" in caught.value.message


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "inproc://x", "udp://127.0.0.1:1"])
def test_other_transports_are_refused_by_name(address):
    with pytest.raises(ConfigError, match="ipc:// or tcp://"):
        frontend_address(address)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_directory_stands_for_its_frontends(tmp_path, kind):
    directory = directory_of(tmp_path, "a", 3)
    found = {frontend_address(kind(directory)) for _ in range(200)}
    assert found == {f"ipc://{directory}/frontend-{number}" for number in range(3)}


def test_a_directory_without_one(tmp_path):
    with pytest.raises(Unavailable, match="no socket of a frontend"):
        frontend_address(directory_of(tmp_path, "a", 0))
    with pytest.raises(Unavailable, match="nowhere"):
        frontend_address(tmp_path / "nowhere")


def test_the_only_running_tree_is_the_default(tmp_path, running):
    directory = directory_of(tmp_path, "a", 1)
    running(directory)
    assert frontend_address(None) == f"ipc://{directory}/frontend-0"


def test_no_running_tree(running):
    running()
    with pytest.raises(Unavailable, match="actorlm up"):
        frontend_address(None)


def test_several_running_trees_are_named(tmp_path, running):
    several = [directory_of(tmp_path, name, 1) for name in "ab"]
    running(*several)
    with pytest.raises(ConfigError) as caught:
        frontend_address(None)
    assert all(str(directory) in caught.value.message for directory in several)
