"""Starts that cannot succeed end within seconds with one clear line; starts that can are not ready too early."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from exchange import PATHS
from tree import ACTORLM, PATIENCE, free_port, until

from actorlm.checkpoint.pull import pulled_path

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")


def assert_fails(tree, status, reason, seconds=8):
    """Ends by itself in time, nothing is left, and the last line is the reason."""
    assert tree.wait(seconds) == status, tree.log
    assert tree.processes() == {}
    assert "Traceback" not in tree.log, tree.log
    last = tree.log.strip().splitlines()[-1]
    assert last.startswith("actorlm: "), tree.log
    assert reason in last, tree.log


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--maximum-model-len", "9"], "--maximum-model-len"),
        (["--tp", "0"], "--tp"),
        (["--dp", "two"], "'two'"),
        (["--tp", "-1"], "--tp"),
        (["--tp", "two"], "'two'"),
        (["--pp", "0"], "--pp"),
        (["--tp", "2", "--executor", "inline"], "--executor broadcast"),
        (["--kv-cache-tokens", "10"], "--kv-cache-tokens"),
        (["--drain-timeout-s", "-1"], "--drain-timeout-s"),
        (["--host", "no.such.host.invalid"], "http://no.such.host.invalid:"),
        (["one", "two"], "two"),
        (["no-such-file.toml"], "no-such-file.toml"),
        (["--api-key", ""], "key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a12_an_option_that_cannot_be_used(start, arguments, reason):
    """Status 2, within a second or two, and nothing was started."""
    tree = start(*NULL, *arguments, ready=False)
    assert_fails(tree, 2, reason, 3)
    assert "start " not in tree.log


def test_a12_an_environment_variable_that_is_no_option(start):
    tree = start(*NULL, ready=False, env={"ACTORLM_KV_CACHE_TOKEN": "64"})
    assert_fails(tree, 2, "did you mean ACTORLM_KV_CACHE_TOKENS?", 3)


def config_that_is_no_json(model):
    (model / "config.json").write_text('{"architectures": ["LlamaForCau')
    return "config.json"


def config_without_a_key(model):
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return "config.json"


def config_missing(model):
    (model / "config.json").unlink()
    return "config.json"


def tokenizer_missing(model):
    (model / "tokenizer.json").unlink()
    return "tokenizer.json"


def tokenizer_that_is_no_json(model):
    (model / "tokenizer.json").write_text("{")
    return "tokenizer.json"


def weights_missing(model):
    (model / "model.safetensors").unlink()
    return "safetensors"


def weights_truncated(model):
    os.truncate(model / "model.safetensors", (model / "model.safetensors").stat().st_size - 1000)
    return "model.safetensors"


def weights_truncated_in_their_header(model):
    os.truncate(model / "model.safetensors", 100)
    return "model.safetensors"


def weights_empty(model):
    os.truncate(model / "model.safetensors", 0)
    return "model.safetensors"


def directory_empty(model):
    for path in model.iterdir():
        path.unlink()
    return "config.json"


DAMAGES = [
    config_that_is_no_json, config_without_a_key, config_missing, tokenizer_missing, tokenizer_that_is_no_json,
    weights_missing, weights_truncated, weights_truncated_in_their_header, weights_empty, directory_empty,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a12_a_model_that_is_damaged(start, tiny_llama, damage):
    reason = damage(tiny_llama)
    assert_fails(start(tiny_llama, ready=False), 1, reason)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (("--tp", 3), "4 attention heads cannot be shared by 3 ranks; --tp may be 1, 2 or 4"),
        (("--tp", 8), "4 attention heads cannot be shared by 8 ranks; --tp may be 1, 2 or 4"),
        (("--pp", 3), "the model has 2 layers, and a stage needs one; --pp may be 1 to 2"),
        (("--tp", 2, "--pp", 9), "--pp may be 1 to 2"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a45_a_model_that_cannot_be_cut_so(start, tiny_llama, shape, reason):
    """Before anything starts, with what there is and what would fit."""
    tree = start(tiny_llama, *shape, ready=False)
    assert_fails(tree, 2, reason, 3)
    assert "start " not in tree.log


def test_a12_a_worker_among_several_cannot_load(start, tiny_llama):
    """Found by the workers alone, as the weights are looked at when they are read: one cause, without a traceback."""
    config = tiny_llama / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 258', '"vocab_size": 270'))
    tree = start(tiny_llama, "--tp", 2, ready=False)
    assert_fails(tree, 1, "embed_tokens", 60)
    assert re.search(r"rank [01] on \S+ \(pid \d+\), loading weights: ", tree.log.splitlines()[-1]), tree.log
    assert len(re.findall("^lost ", tree.log, re.MULTILINE)) == 1


@pytest.mark.parametrize("path", ["/no/such/model", "./model.gguf", "no-such-short-name"])
def test_a12_a_model_that_is_not_there(start, path):
    assert_fails(start(path, ready=False), 1, path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a12_a_gguf_file_that_is_truncated(start, tmp_path, share):
    """In its header, its keys, in the middle of its tensors, near its end."""
    whole = pulled_path("smollm2-135m")
    if not whole.exists():
        subprocess.run([ACTORLM, "pull", "smollm2-135m"], check=True)
    damaged = tmp_path / "truncated.gguf"
    shutil.copy(whole, damaged)
    os.truncate(damaged, int(whole.stat().st_size * share))
    assert_fails(start(damaged, ready=False), 1, "truncated.gguf")


@pytest.mark.parametrize("options", [("--kv-cache-tokens", 10**11), ("--kv-cache-tokens", 10**9, "--dp", 64)])
def test_a12_too_little_memory(start, tiny_llama, options):
    assert_fails(start(tiny_llama, *options, ready=False), 1, "--kv-cache-tokens")


@pytest.mark.parametrize("victim", ["engine-0", "detokenizer-0", "worker-0-0"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda number: number.name)
def test_a12_a_process_dies_while_it_starts(start, victim, number):
    """Before the tree was ready once, any death ends it: the first cause is the last thing printed."""
    tree = start(*NULL, "--tp", 2, ready=False)
    until(lambda: f"actorlm {victim}" in tree.processes().values(), 10, every=0.001)
    pid = tree.kill(victim, number)
    assert_fails(tree, 1, f"actorlm: {victim} (pid {pid}): killed by {number.name}", 10)


def test_a12_a_process_that_fails_while_it_starts(start, tmp_path):
    """A worker whose interpreter ends with a status of its own."""
    (tmp_path / "setproctitle.py").write_text(
        "import os, sys\ndef setproctitle(title):\n    if title == 'actorlm worker-0-0': os._exit(3)\n"
    )
    tree = start(*NULL, "--executor", "broadcast", ready=False, env={"PYTHONPATH": path_with(tmp_path)})
    assert_fails(tree, 1, "exited with status 3", 10)
    assert tree.log.strip().splitlines()[-1].startswith("actorlm: worker-0-0 (pid ")


def path_with(directory):
    return os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))


def test_a12_a_slow_start_is_named(start):
    """Those that are not ready in time, and the option to give them more."""
    tree = start(*NULL, "--start-timeout-s", 3, ready=False)
    until(lambda: "actorlm engine-0" in tree.processes().values(), 10, every=0.001)
    tree.kill("engine-0", signal.SIGSTOP)
    assert_fails(tree, 1, "not ready after 3 s: engine-0", 12)
    assert "--start-timeout-s" in tree.log.splitlines()[-1]


@pytest.mark.parametrize("holder", ["127.0.0.1", "0.0.0.0"])
def test_a16_a_busy_port(start, tiny_llama, holder):
    """Found before the model is looked at, let alone loaded."""
    with socket.create_server((holder, 0)) as held:
        port = held.getsockname()[1]
        tree = start(tiny_llama, ready=False, port=port)
        assert_fails(tree, 2, f"http://127.0.0.1:{port}", 2)
        assert "start " not in tree.log


def test_a16_the_port_of_another_tree(start, null_tree):
    """It is not shared with the other one by accident."""
    assert_fails(start(*NULL, ready=False, port=null_tree.port), 2, f"{null_tree.port}", 2)
    null_tree.sentinel()


@pytest.mark.parametrize(("host", "served"), [("::1", ["[::1]"]), ("[::1]", ["[::1]"]), ("::", ["[::1]", "127.0.0.1"])])
def test_a21_an_ipv6_address_to_listen_on(start, host, served):
    """It is served, and printed with brackets; all addresses of IPv6 are those of IPv4 as well."""
    tree = start(*NULL, "--host", host, ready=False)
    tree.client.base_url = f"http://[::1]:{tree.port}"
    tree.wait_ready()
    until(lambda: f": http://[{host.strip('[]')}]:{tree.port} serves null" in tree.log, 5)
    for address in served:
        tree.client.base_url = f"http://{address}:{tree.port}"
        tree.sentinel()


def long_directory(parent, length=200):
    path = Path(parent)
    while len(str(path)) < length:
        path /= "a" * min(100, max(1, length - len(str(path)) - 1))
    path.mkdir(parents=True)
    return path


def test_a18_long_names_do_not_break_sockets(start, tmp_path):
    """Of the temporary directory, the runtime directory, the model, the working directory."""
    import tiny_llama as tiny

    deep = long_directory(tmp_path)
    name = "n" * 200
    tree = start(
        tiny.write(deep / "model"), *NULL, "--served-model-name", name,
        cwd=deep, env={"TMPDIR": str(deep), "XDG_RUNTIME_DIR": str(deep)},
    )  # fmt: skip
    assert tree.complete("x", max_tokens=2)["model"] == name
    assert tree.stop() == (0, {})
    assert [path.name for path in deep.iterdir()] == ["model"]


def test_a18_a_runtime_directory_that_cannot_be_ours(start, tmp_path):
    """Another one is taken, and what is there is left as it is."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / f"actorlm-{os.getuid()}").touch()
    tree = start(*NULL, env={"XDG_RUNTIME_DIR": str(blocked)})
    tree.sentinel()
    assert list(blocked.iterdir()) == [blocked / f"actorlm-{os.getuid()}"]


@pytest.mark.parametrize(
    "launches",
    [pytest.param(2, id="short"), pytest.param(50, id="long", marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_a36_ready_means_that_it_serves(start, launches):
    """Asked from the launch on: refused or 503, then 200 and a completion at once."""
    for _ in range(launches):
        tree = start(*NULL, "--dp", 2, ready=False)
        seen = {path: [] for path in ("/health", "/ready", "/v1/models")}
        deadline = time.monotonic() + 20 * PATIENCE
        while not seen["/ready"] or seen["/ready"][-1] != 200:
            assert time.monotonic() < deadline, tree.log
            ask(tree, seen)
            time.sleep(0.02)
        answer = tree.post(PATHS[0], {"model": "null", "prompt": "x", "max_tokens": 1})
        assert answer.status_code == 200, answer.text
        for path, statuses in seen.items():
            assert statuses == sorted(statuses, reverse=True), path
            assert set(statuses) <= {503, 200}
        tree.close()


def ask(tree, seen):
    """Readiness is asked first, so that the others cannot have been asked before it turned."""
    for path in ("/ready", "/health", "/v1/models"):
        try:
            seen[path].append(tree.client.get(path, timeout=10 * PATIENCE).status_code)
        except httpx.ConnectError:
            return


def test_a36_a_real_model_too(start, tiny_llama):
    """And a tree that could listen on a port of its own choice says which."""
    tree = start(tiny_llama, port=0)
    assert tree.port not in (0, free_port())
    assert tree.text("x", max_tokens=3, ignore_eos=True) is not None
    assert tree.stop() == (0, {})
