"""Hosts that are network namespaces on a wire of ours. Needs root and TAP devices."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tree import ACTORLM, Tree, connect, until

NAMES = ("a", "b", "c")
NETWORK = "10.77.0"


def _impossible():
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.access("/dev/net/tun", os.W_OK):
        return "there is no /dev/net/tun"
    probe = shutil.which("ip") and subprocess.run(["ip", "netns", "list"], capture_output=True, check=False)
    return "" if probe and not probe.returncode else "there is no `ip netns`"


def pytest_collection_modifyitems(items):
    reason = None
    for item in items:
        if Path(__file__).parent in item.path.parents:
            reason = _impossible() if reason is None else reason
            item.add_marker(pytest.mark.hosts)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True)


class Network:
    """Namespaces a, b and c at 10.77.0.1, .2 and .3 and fd77::1, ::2 and ::3; the test is at .9."""

    def __init__(self):
        self.names = {name: f"actorlm-test-{os.getpid()}-{name}" for name in NAMES}
        for namespace in self.names.values():
            _ip("netns", "add", namespace)
        command = [sys.executable, Path(__file__).with_name("wire.py"), *self.names.values()]
        self._wire = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._wire.stdout.readline() == "up\n"
        for number, namespace in enumerate(self.names.values(), 1):
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "address", "add", f"{NETWORK}.{number}/24", "dev", "wire")
            _ip("-n", namespace, "address", "add", f"fd77::{number}/64", "dev", "wire", "nodad")
            _ip("-n", namespace, "link", "set", "wire", "up")
        _ip("address", "add", f"{NETWORK}.9/24", "dev", "wire")
        _ip("link", "set", "wire", "up")

    def say(self, *words):
        print(*words, file=self._wire.stdin, flush=True)
        assert self._wire.stdout.readline() == "done\n"

    def cut(self, one, other):
        self.say("cut", NAMES.index(one), NAMES.index(other))

    def heal(self, one, other):
        self.say("heal", NAMES.index(one), NAMES.index(other))

    def close(self):
        self._wire.stdin.close()
        self._wire.wait(10)
        for namespace in self.names.values():
            subprocess.run(["ip", "netns", "delete", namespace], check=False)


@pytest.fixture
def network():
    network = Network()
    yield network
    network.close()


class HostTree(Tree):
    """`actorlm up` in a namespace."""

    def __init__(self, network, name, file, *arguments, **options):
        prefix = ("ip", "netns", "exec", network.names[name], ACTORLM, "up")
        super().__init__(file, "--on", name, *arguments, command=prefix, port=8000, **options)
        self.client.close()
        self.url = f"http://{NETWORK}.{NAMES.index(name) + 1}:8000"
        self.client = connect(self.url)

    def wait_for(self, line, times=1, seconds=15):
        until(lambda: self.log.count(line) >= times, seconds)


@pytest.fixture
def up(network, tmp_path):
    """Starts hosts of a deployment, which `up.write` has written."""
    trees = []

    def begin(name, *arguments, **options):
        trees.append(HostTree(network, name, tmp_path / "deployment.toml", *arguments, **options))
        return trees[-1]

    def write(hosts, text="", model='model_impl = "null"', addresses=None):
        at = {name: f"{NETWORK}.{number}" for number, name in enumerate(NAMES, 1)} | (addresses or {})
        tables = [f'[hosts.{name}]\naddress = "{at[name]}"\n{more}\n' for name, more in hosts.items()]
        http = '[http]\nhost = "0.0.0.0"\n[security]\ninsecure = true\n'
        (tmp_path / "deployment.toml").write_text(f"[model]\n{model}\n{http}{text}\n" + "".join(tables))

    begin.write = write
    yield begin
    for tree in trees:
        tree.close()
