"""API keys from a file, in whole trees: every frontend follows a change, and a bad file ends the start."""

import signal
import subprocess

import openai
import pytest
from tree import ACTORLM, Tree, until

from actorlm.api.key_edit import add, remove
from actorlm.api.key_file import Key, hash_of, make_key

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

ALICE, BOB, OPTION = make_key(), make_key(), "sk-of-the-option"


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "keys.toml"
    add(made, Key(name="alice", hash=hash_of(ALICE)))
    return made


def status(tree, key, path="/v1/models"):
    """Over a connection of its own, so that any frontend may take it."""
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    return tree.client.get(path, headers=headers).status_code


def models(tree, key):
    with openai.OpenAI(base_url=f"{tree.url}/v1", api_key=key, max_retries=0) as sdk:
        return [model.id for model in sdk.models.list()]


def statuses(tree, key):
    return {status(tree, key) for _ in range(12)}


def test_e15_every_frontend_follows_the_file(file):
    with Tree(
        "--model-impl", "null", "--frontends", 2, "--api-keys-file", file, env={"ACTORLM_API_KEY": OPTION}
    ) as tree:
        tree.client.headers["authorization"] = f"Bearer {OPTION}"
        tree.wait_ready()
        assert statuses(tree, ALICE) == {200}
        assert statuses(tree, BOB) == {401}
        assert models(tree, ALICE) == ["null"]
        add(file, Key(name="bob", hash=hash_of(BOB)))
        remove(file, "alice")
        until(lambda: statuses(tree, BOB) == {200} and statuses(tree, ALICE) == {401}, 4)
        with pytest.raises(openai.AuthenticationError):
            models(tree, ALICE)
        file.write_text("[[key")
        until(lambda: tree.log.count("not read again") == 2, 4)
        assert statuses(tree, BOB) == {200}
        tree.kill("frontend-1")
        until(lambda: "ready again" in tree.log, 20)
        assert statuses(tree, OPTION) == {200}
        assert "nobody has a key of this file until it is repaired" in tree.log
        assert all(secret not in tree.log for secret in (ALICE, BOB, OPTION, hash_of(BOB)))
        assert tree.stop(signal.SIGTERM) == (0, {})


@pytest.mark.parametrize(
    ("text", "mode", "named"), [("", 0o600, "no keys"), ("[[key]]", 0o600, "name"), (None, 0o620, "chmod")]
)
def test_e15_a_bad_file_is_an_error_at_the_start(file, text, mode, named):
    if text is not None:
        file.write_text(text)
    file.chmod(mode)
    command = [ACTORLM, "up", "--model-impl", "null", "--api-keys-file", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"actorlm: {file}: ")
    assert named in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
