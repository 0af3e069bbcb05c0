"""E02, E06: on one host nothing but HTTP is on a network, and nobody else reaches the sockets between actors."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hostile import bound_sockets, network_sockets
from tree import Tree, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

STANDARD = [
    "asyncio",
    "http",
    "json",
    "queue",
    "random",
    "secrets",
    "signal",
    "types",
    "sitecustomize",
    "usercustomize",
]
INSTALLED = [
    "actorlm",
    "httptools",
    "litestar",
    "msgspec",
    "numpy",
    "pip",
    "setproctitle",
    "structlog",
    "tokenizers",
    "torch",
]
MODULES = [*STANDARD, *INSTALLED, "uvloop", "zmq"]


@pytest.fixture
def directory():
    """A short path, below which a run directory fits an ipc address."""
    path = Path(tempfile.mkdtemp(prefix="e06", dir="/tmp"))
    yield path
    shutil.rmtree(path)


# E02.


@pytest.mark.parametrize(
    ("host", "protocol", "options"),
    [
        ("127.0.0.1", "tcp", ("--executor", "broadcast", "--dp", "2", "--frontends", "2", "--detokenizers", "2")),
        ("127.0.0.2", "tcp", ()),
        ("::1", "tcp6", ()),
    ],
)
def test_e02_only_http_is_on_the_network(start, host, protocol, options):
    tree = start("--model-impl", "null", "--host", host, *options, ready=False)
    until(lambda: "ready after" in tree.log, 40)
    assert network_sockets(tree) == {(protocol, host, tree.port)}


def test_e02_torch_opens_nothing(smollm2):
    assert network_sockets(smollm2) == {("tcp", "127.0.0.1", smollm2.port)}


# E06.


def mode(path):
    return stat.S_IMODE(Path(path).lstat().st_mode)


def assert_private(tree):
    """Every socket lies in directories that are the tree's user's alone."""
    paths = bound_sockets(tree)
    assert {"supervisor", "balancer", "detokenizer-0", "detokenizer-0-tokens"} <= paths.keys()
    for path in paths.values():
        run_directory = Path(path).parent
        for above in (run_directory, run_directory.parent):
            assert not above.is_symlink()
            assert mode(above) == 0o700
            assert above.lstat().st_uid == os.getuid()
    return {Path(path).parent.parent for path in paths.values()}


def as_nobody(action):
    """What `action` returns, a text, in a process of a user without any right."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, action().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        os.waitpid(child, 0)
        return answer.read()


def reach(paths):
    """Tries everything with these sockets and their directories; returns what was possible."""
    uses = [
        ("connect", lambda path: socket.socket(socket.AF_UNIX).connect(path)),
        ("stat", os.stat),
        ("list", lambda path: list(Path(path).parent.iterdir())),
    ]
    done = []
    for path in paths:
        for name, use in uses:
            with contextlib.suppress(PermissionError):
                use(path)
                done.append(f"{name} {path}")
    return " ".join([f"as {os.getuid()}:", *done])


@as_root
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_e06_another_user_reaches_no_socket(start, directory, umask):
    before = os.umask(umask)
    try:
        tree = start("--model-impl", "null", "--executor", "broadcast", env={"XDG_RUNTIME_DIR": str(directory)})
    finally:
        os.umask(before)
    directory.chmod(0o755)
    assert assert_private(tree) == {directory / f"actorlm-{os.getuid()}"}
    sockets = list(bound_sockets(tree).values())
    assert as_nobody(lambda: reach(sockets)) == f"as {NOBODY}:"
    assert "connect" in reach(sockets[:1]).split(" ")  # it would have told
    tree.sentinel()


def place_symlink(base):
    target = base.with_name("target")
    target.mkdir(mode=0o777)
    base.symlink_to(target)


def place_dangling_symlink(base):
    base.symlink_to(base.with_name("target"))


def place_file(base):
    base.write_text("")


def place_foreign(base):
    base.mkdir()
    os.chown(base, NOBODY, NOBODY)
    base.chmod(0o777)


def place_foreign_parent(base):
    os.chown(base.parent, NOBODY, NOBODY)


def place_open_parent(base):
    base.parent.chmod(0o777)


PLACED = [place_symlink, place_dangling_symlink, place_file]
PLACED += [pytest.param(place, marks=as_root) for place in (place_foreign, place_foreign_parent, place_open_parent)]


@pytest.mark.parametrize("place", PLACED, ids=lambda place: place.__name__)
def test_e06_a_directory_that_others_made_or_may_swap_is_not_used(start, directory, place):
    base = directory / f"actorlm-{os.getuid()}"
    place(base)
    tree = start("--model-impl", "null", env={"XDG_RUNTIME_DIR": str(directory)})
    assert base not in assert_private(tree)
    target = base.with_name("target")
    assert not target.exists() or not list(target.iterdir())
    assert base.is_symlink() or not base.is_dir() or not list(base.iterdir())


def test_e06_our_own_directory_is_made_private(start, directory):
    base = directory / f"actorlm-{os.getuid()}"
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    tree = start("--model-impl", "null", env={"XDG_RUNTIME_DIR": str(directory)})
    assert assert_private(tree) == {base}


@pytest.mark.parametrize(
    "place", [place_symlink, pytest.param(place_foreign, marks=as_root)], ids=lambda place: place.__name__
)
def test_e06_ps_asks_no_supervisor_of_others(directory, place):
    base = directory / f"actorlm-{os.getuid()}"
    place(base)
    fake = base / "12345678"
    fake.mkdir()
    held = os.open(fake, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(fake / "supervisor"))
        server.listen()
        server.settimeout(0.2)
        command = [str(Path(sys.executable).with_name("actorlm")), "ps"]
        environment = os.environ | {"XDG_RUNTIME_DIR": str(directory)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        with pytest.raises(TimeoutError):
            server.accept()
    os.close(held)
    assert str(directory) not in ended.stdout
    assert ended.stderr == ""


def test_e01_nothing_is_imported_from_the_working_directory(directory):
    """A folder that somebody sent may hold modules with the names of ours; a tree that is started in it runs none."""
    for name in MODULES:
        (directory / f"{name}.py").write_text(f"open({str(directory / 'pwned')!r}, 'a').write({name!r})\n")
    with Tree("--model-impl", "null", "--executor", "broadcast", cwd=directory) as tree:
        tree.wait_ready().sentinel()
        tree.stop(signal.SIGTERM)
    with contextlib.suppress(FileNotFoundError):
        pytest.fail((directory / "pwned").read_text())
