"""A tree whose sockets are all TCP, with keys: who does not belong comes in nowhere, and no secret is ever shown."""

import asyncio
import os
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest
import zmq
from curve_peers import comes_in, key_of, no_key, plain, public_of, unknown_key
from tree import ACTORLM, Tree, until

from actorlm import Client
from actorlm.errors import ProtocolError
from actorlm.make_keys import make
from actorlm.topology import Role

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

SOCKETS = {
    "supervisor": (Role.SUPERVISOR, zmq.DEALER, tuple(Role)),
    "balancer": (Role.BALANCER, zmq.DEALER, (Role.FRONTEND, Role.ENGINE)),
    "detokenizer-0": (Role.DETOKENIZER, zmq.DEALER, (Role.FRONTEND, Role.ENGINE)),
    "detokenizer-0-tokens": (Role.DETOKENIZER, zmq.PUSH, (Role.FRONTEND, Role.ENGINE)),
    "engine-0-workers": (Role.ENGINE, zmq.DEALER, (Role.WORKER,)),
    "engine-0-steps": (Role.ENGINE, zmq.SUB, (Role.WORKER,)),
    "engine-0-results": (Role.ENGINE, zmq.PUSH, (Role.WORKER,)),
    "frontend-0": (Role.FRONTEND, zmq.DEALER, (Role.CLIENT,)),
}
"""Whose it is, what connects there, and which roles it admits."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys") / "keys"
    make(directory, list(Role))
    return directory


@pytest.fixture(scope="module")
def addresses():
    held = [socket.create_server(("127.0.0.1", 0)) for _ in SOCKETS]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return {name: f"tcp://127.0.0.1:{port}" for name, port in zip(SOCKETS, ports, strict=True)}


@pytest.fixture(scope="module")
def tree(keys, addresses, tmp_path_factory):
    file = tmp_path_factory.mktemp("tree") / "tree.toml"
    lines = [
        "[model]", 'model_impl = "null"', "[parallel]", 'executor = "broadcast"', "[security]", f'keys = "{keys}"',
        "[sockets]", *(f'{name} = "{address}"' for name, address in addresses.items()),
    ]  # fmt: skip
    file.write_text("\n".join(lines))
    with Tree(file) as one:
        yield one.wait_ready()


@pytest.fixture
def context():
    one = zmq.Context()
    yield one
    one.destroy(linger=0)


def refused(tree):
    return tree.total("connections_refused_total")


@pytest.mark.parametrize("name", SOCKETS)
def test_every_socket_admits_its_roles_and_nobody_else(tree, keys, addresses, context, name):
    server, kind, admitted = SOCKETS[name]
    strangers = [no_key, plain, unknown_key(public_of(keys, server))]
    others = [role for role in Role if role not in admitted]
    before = refused(tree)
    for prepare in [*strangers, *(key_of(keys, role, server) for role in others)]:
        assert not comes_in(context, kind, addresses[name], prepare)
    for role in admitted:
        assert comes_in(context, kind, addresses[name], key_of(keys, role, server)), role
    until(lambda: refused(tree) >= before + 3 + len(others), 5)
    tree.sentinel()


def test_who_was_refused_is_in_the_log_once(tree, keys, addresses, context):
    for _ in range(3):
        comes_in(context, zmq.DEALER, addresses["balancer"], key_of(keys, Role.CLIENT, Role.BALANCER))
    where = f"router {addresses['balancer']}"
    until(lambda: where in tree.log, 5)
    lines = [line for line in tree.log.splitlines() if where in line and "key client" in line]
    assert len(lines) == 1
    assert "its role is client; admitted are engine, frontend" in lines[0]


async def test_a_client_with_a_key_is_answered(tree, keys, addresses):
    async with Client(addresses["frontend-0"], keys=keys) as client:
        text = "".join([delta.text async for delta in client.generate("hi", max_tokens=4, seed=5)])
    assert text == await asyncio.to_thread(tree.text, "hi", max_tokens=4, seed=5)


async def test_a_client_of_another_tree_is_refused(tree, keys, addresses, tmp_path):
    make(tmp_path / "others", list(Role))
    (tmp_path / "others" / "public" / "frontend.toml").write_bytes((keys / "public" / "frontend.toml").read_bytes())
    with pytest.raises(ProtocolError, match="refuses our key"):
        await Client(addresses["frontend-0"], keys=tmp_path / "others").__aenter__()


def test_no_secret_is_shown_anywhere(tree, keys):
    secrets = [tomllib.loads(path.read_text())["secret"] for path in (keys / "secret").iterdir()]
    shown = [tree.log]
    for pid in tree.processes():
        shown += [Path(f"/proc/{pid}/{what}").read_bytes().decode(errors="replace") for what in ("cmdline", "environ")]
    assert not any(secret in text for secret in secrets for text in shown)


def test_an_operator_on_this_machine_finds_address_and_key(tree):
    def listed():
        wide = os.environ | {"COLUMNS": "200"}
        done = subprocess.run([ACTORLM, "ps"], env=wide, capture_output=True, text=True, check=True, timeout=60)
        _, found, rest = done.stdout.partition(f"{tree.url} ")
        return found and "detokenizer-0" in rest

    until(listed, 20)


def test_a_replica_that_is_lost_comes_back(tree):
    tree.kill("worker-0-0")
    until(lambda: "ready again" in tree.log, 30)
    tree.sentinel()
