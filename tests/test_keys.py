"""Directories of keys: what `actorlm keys` makes, who may read it, and what is refused."""

import os
import stat
import subprocess
import sys

import msgspec
import pytest
from rich.pretty import pretty_repr

from actorlm.client import Client
from actorlm.errors import ConfigError, ProtocolError
from actorlm.keys import LISTENING, KeyDirectory, KeyPair
from actorlm.make_keys import add, make, share
from actorlm.options import merge
from actorlm.runtime.curve import Keyring, Security
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.tcp_keys import check_security
from actorlm.topology import PlannedProcess, Role, Topology

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def directory(tmp_path):
    before = os.umask(0)
    try:
        make(tmp_path / "keys", list(Role))
    finally:
        os.umask(before)
    return tmp_path / "keys"


def secrets_of(directory):
    return [line.split('"')[1] for path in (directory / "secret").iterdir() for line in path.read_text().splitlines()
            if line.startswith("secret")]  # fmt: skip


def test_every_role_has_a_pair_and_nobody_else_may_read_it(directory):
    for path in (directory, *directory.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    keys = KeyDirectory(directory)
    for role in Role:
        ring = Keyring(keys, role)
        assert keys.of_server(role).encode() == ring.public
        assert ring.find(ring.public.decode()).role == role
    assert len(keys.known()) == len(set(secrets_of(directory))) == len(Role)


def test_public_files_hold_no_secret(directory):
    public = "".join(path.read_text() for path in (directory / "public").iterdir())
    assert not any(secret in public for secret in secrets_of(directory))


def test_a_pair_never_shows_its_secret(directory):
    pair = KeyDirectory(directory).own(Role.ENGINE)
    assert pair.secret in secrets_of(directory)
    for text in (repr(pair), str(pair), f"{pair}", pretty_repr(pair)):
        assert pair.secret not in text
        assert pair.public in text


def test_nothing_is_overwritten(directory):
    before = {path: path.read_text() for path in directory.rglob("*.toml")}
    with pytest.raises(ConfigError, match="exists"):
        make(directory, [Role.ENGINE])
    with pytest.raises(ConfigError, match="exists"):
        add(directory, "client", Role.CLIENT)
    with pytest.raises(ConfigError, match="exists"):
        share(directory, directory, ["client"])
    assert {path: path.read_text() for path in directory.rglob("*.toml")} == before


def test_further_keys_of_roles_that_only_connect(directory):
    add(directory, "alice", Role.CLIENT)
    known = KeyDirectory(directory).known()
    assert sorted(key.name for key in known.values() if key.role == Role.CLIENT) == ["alice", "client"]


@pytest.mark.parametrize(
    ("name", "role"),
    [("second", role) for role in sorted(LISTENING)]
    + [("engine", Role.CLIENT), ("../x", Role.CLIENT), (".x", Role.CLIENT), ("", Role.CLIENT), ("x" * 65, Role.CLIENT)],
)
def test_further_keys_that_cannot_be(directory, name, role):
    with pytest.raises(ConfigError, match="--add"):
        add(directory, name, role)
    assert len(list(directory.rglob("*"))) == 2 + 2 * len(Role)


def test_a_part_for_another_machine(directory, tmp_path):
    add(directory, "alice", Role.CLIENT)
    share(directory, tmp_path / "laptop", ["alice"])
    part = KeyDirectory(tmp_path / "laptop")
    assert part.own(Role.CLIENT) == msgspec.convert(
        {"role": "client", "public": part.own(Role.CLIENT).public, "secret": part.own(Role.CLIENT).secret}, KeyPair
    )
    assert part.known() == KeyDirectory(directory).known()
    with pytest.raises(ConfigError, match="no key of role frontend"):
        part.own(Role.FRONTEND)
    with pytest.raises(ConfigError, match="--name bob"):
        share(directory, tmp_path / "other", ["bob"])
    assert not (tmp_path / "other").exists()


def test_the_roles_own_key_goes_before_others(directory):
    own = KeyDirectory(directory).own(Role.CLIENT)
    add(directory, "alice", Role.CLIENT)
    assert KeyDirectory(directory).own(Role.CLIENT) == own
    add(directory, "bob", Role.CLIENT)
    (directory / "secret" / "client.toml").unlink()
    with pytest.raises(ConfigError, match=r"alice, bob; leave one"):
        KeyDirectory(directory).own(Role.CLIENT)


def use(directory):
    keys = KeyDirectory(directory)
    keys.own(Role.CLIENT)
    keys.known()


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o710, 0o707])
@pytest.mark.parametrize("what", [".", "secret"])
def test_a_directory_that_others_may_open_is_refused_by_name(directory, what, mode):
    (directory / what).chmod(mode)
    with pytest.raises(ConfigError) as caught:
        use(directory)
    assert f"chmod go-rwx {directory / what}" in caught.value.message


@pytest.mark.parametrize(("what", "mode"), [("secret/engine.toml", 0o640), ("secret/client.toml", 0o604),
                                            ("public", 0o720), ("public/client.toml", 0o602)])  # fmt: skip
def test_a_file_that_others_may_read_or_change_is_refused_by_name(directory, what, mode):
    (directory / what).chmod(mode)
    with pytest.raises(ConfigError) as caught:
        use(directory)
    assert str(directory / what) in caught.value.message


@as_root
@pytest.mark.parametrize("what", [".", "public", "secret", "public/client.toml", "secret/client.toml"])
def test_what_belongs_to_others_is_refused_by_name(directory, what):
    os.chown(directory / what, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        use(directory)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "role = 'client'", "role = 'king'\npublic = 'x'", "\xff", "role = 'client'\npublic = 'short'"],
)
@pytest.mark.parametrize("kind", ["public", "secret"])
def test_a_file_that_is_no_key_is_refused_by_name(directory, kind, text):
    path = directory / kind / "client.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError) as caught:
        use(directory)
    assert str(path) in caught.value.message


def test_one_key_in_two_files_is_refused(directory):
    text = (directory / "public" / "client.toml").read_text()
    (directory / "public" / "worker.toml").write_text(text)
    with pytest.raises(ConfigError, match="same key as client"):
        use(directory)


def test_files_that_come_and_go_are_noticed(directory):
    ring = Keyring(KeyDirectory(directory), Role.FRONTEND)
    add(directory, "alice", Role.CLIENT)
    alice = next(public for public, key in KeyDirectory(directory).known().items() if key.name == "alice")
    assert ring.find(alice).name == "alice"
    (directory / "public" / "alice.toml").unlink()
    assert ring.find(alice) is None
    engine = KeyDirectory(directory).of_server(Role.ENGINE)
    assert ring.find(engine).role == Role.ENGINE
    (directory / "public" / "engine.toml").write_text("half a f")
    with pytest.raises(ConfigError, match=r"engine\.toml"):
        ring.find(engine)


def test_no_directory(tmp_path):
    with pytest.raises(ConfigError, match="actorlm keys"):
        KeyDirectory(tmp_path / "nowhere")


# The command.


def run(*arguments):
    command = [sys.executable, "-m", "actorlm", "keys", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_makes_adds_and_copies(tmp_path):
    assert run(tmp_path / "a").returncode == 0
    assert KeyDirectory(tmp_path / "a").own(Role.WORKER)
    assert run(tmp_path / "b", "--role", "client", "--role", "operator").returncode == 0
    assert sorted(path.stem for path in (tmp_path / "b" / "secret").iterdir()) == ["client", "operator"]
    assert run(tmp_path / "a", "--add", "alice", "--role", "client").returncode == 0
    assert run(tmp_path / "c", "--from", tmp_path / "a", "--name", "alice", "--name", "worker").returncode == 0
    assert sorted(path.stem for path in (tmp_path / "c" / "secret").iterdir()) == ["alice", "worker"]


@pytest.mark.parametrize(
    "arguments",
    [["--add", "x"], ["--add", "x", "--role", "client", "--role", "worker"], ["--name", "x"], ["--role", "king"],
     ["--from", "x", "--role", "client"], ["--from", "nowhere", "--name", "client"]],
)  # fmt: skip
def test_the_command_refuses_what_makes_no_sense(tmp_path, arguments):
    result = run(tmp_path / "a", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("actorlm: ")
    assert not (tmp_path / "a").exists()


# The options, and what checks them at the start.


def tree(address, lead=""):
    """A topology of one frontend, on every host that there is."""
    frontend = PlannedProcess(name="frontend-0", role=Role.FRONTEND, group="frontend-0", host="b" if lead else "")
    return Topology(
        directory="/run", executor="inline", kv_cache_tokens=0, threads=1, processes=(frontend,), lead=lead,
        tcp={"frontend-0": address} if address.startswith("tcp:") else {},
    )  # fmt: skip


def options(**flags):
    return merge(flags, {}, None).security


def test_a_tree_beyond_this_machine_needs_keys():
    with pytest.raises(ConfigError) as caught:
        check_security(options(), tree("tcp://10.0.0.1:7000"))
    for what in ("tcp://10.0.0.1:7000", "actorlm keys", "--keys", "--insecure"):
        assert what in caught.value.message


def test_a_tree_with_keys_or_on_this_machine_is_fine(directory):
    assert check_security(options(keys=str(directory)), tree("tcp://10.0.0.1:7000")) == ""
    assert check_security(options(), tree("tcp://127.0.0.1:7000")) == ""
    assert check_security(options(), tree("ipc:///run/x")) == ""


def test_an_insecure_tree_is_warned_of():
    warning = check_security(options(insecure=True), tree("tcp://10.0.0.1:7000"))
    assert warning.startswith("warning: --insecure")
    assert "tcp://10.0.0.1:7000" in warning


def test_a_role_without_its_secret_is_missed_at_the_start(directory):
    (directory / "secret" / "frontend.toml").unlink()
    with pytest.raises(ConfigError, match="no key of role frontend"):
        check_security(options(keys=str(directory)), tree("tcp://10.0.0.1:7000"))


def test_a_host_needs_the_secrets_of_what_runs_there_and_no_others(directory):
    spread = tree("tcp://10.0.0.1:7000", lead="a")
    for role in set(Role) - {Role.HOST, Role.FRONTEND}:
        (directory / "secret" / f"{role}.toml").unlink()
    assert check_security(options(keys=str(directory)), spread, "b") == ""
    with pytest.raises(ConfigError, match="no key of role supervisor"):
        check_security(options(keys=str(directory)), spread, "a")
    (directory / "secret" / "host.toml").unlink()
    with pytest.raises(ConfigError, match="no key of role host"):
        check_security(options(keys=str(directory)), spread, "b")


def test_keys_and_insecure_contradict_each_other(directory):
    with pytest.raises(ConfigError, match="contradict"):
        Security.of(directory, Role.CLIENT, insecure=True)


# The client.


async def test_a_client_without_keys_goes_nowhere_beyond():
    with pytest.raises(ConfigError, match="beyond this machine"):
        await Client("tcp://10.0.0.1:7000").__aenter__()


@pytest.mark.parametrize("refused", ["unknown key", "no key"])
async def test_a_client_that_is_refused_learns_it_at_once(directory, tmp_path, refused):
    from actorlm.messages.catalog import protocol
    from actorlm.messages.frontend import FromClients

    make(tmp_path / "others", list(Role))
    (tmp_path / "others" / "public" / "frontend.toml").write_text((directory / "public" / "frontend.toml").read_text())
    network = ZeroMQNetwork(protocol(), security=Security.of(directory, Role.FRONTEND))
    server = network.serve(
        "tcp://127.0.0.1:0",
        identity=this_process(Role.FRONTEND, "frontend-0"),
        mailbox=Mailbox("frontend-0", 10, Overflow.PAUSE),
        inbox=FromClients,
        admits=(Role.CLIENT,),
    )
    try:
        keys = tmp_path / "others" if refused == "unknown key" else None
        with pytest.raises(ProtocolError, match="key"):
            await Client(server.address, keys=keys, timeout_s=20).__aenter__()
    finally:
        await network.close(flush_s=0)
