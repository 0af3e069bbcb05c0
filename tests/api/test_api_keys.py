"""Keys from an option and a file: whose they are, when they end, and that a changed file counts without a restart."""

import asyncio
import os
from datetime import UTC, datetime

import pytest
from fake_backend import make_client, text
from structlog.testing import capture_logs

from actorlm.api import watch
from actorlm.api.app import create_app
from actorlm.api.key_edit import add, remove
from actorlm.api.key_file import Key, hash_of
from actorlm.api.keys import Keys, WatchedKeys
from actorlm.config import HttpConfig
from actorlm.errors import ConfigError

ALICE, BOB = "sk-of-alice", "sk-of-bob"


def entry(name, secret, **fields):
    return Key(name=name, hash=hash_of(secret), **fields)


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "keys.toml"
    add(made, entry("alice", ALICE, weight=2.0))
    return made


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(watch, "PERIOD_S", 0.01)


@pytest.fixture
async def watching(backend, file):
    """An application that reads the file, and a function that asks it with a key for a status."""
    app = create_app(backend, HttpConfig(api_keys_file=str(file)))
    task = asyncio.create_task(app.watch())
    async with make_client(backend, app=app) as client:

        async def status(key):
            return (await client.get("/v1/models", headers=bearer(key))).status_code

        yield status
    task.cancel()


async def becomes(status, key, wanted):
    async with asyncio.timeout(10):
        while await status(key) != wanted:  # noqa: ASYNC110 - there is nothing to wait for but time
            await asyncio.sleep(0.01)


def test_a_key_is_found_by_its_hash_alone():
    keys = Keys([entry("alice", ALICE), entry("bob", BOB)])
    assert keys.find(ALICE.encode()).name == "alice"
    assert keys.find(BOB.encode()).name == "bob"
    for wrong in (b"", b"sk-of-alic", b"sk-of-alicf", ALICE.encode() + b"\0", hash_of(ALICE).encode(), b"\xff"):
        assert keys.find(wrong) is None


def test_a_key_ends_at_its_time():
    end = datetime(2027, 1, 1, tzinfo=UTC)
    now = [end.timestamp() - 0.5]
    keys = Keys([entry("alice", ALICE, expires=end)], lambda: now[0])
    assert keys.find(ALICE.encode()) is not None
    now[0] += 0.5
    assert keys.find(ALICE.encode()) is None


def test_an_option_and_a_file_count_together(file):
    keys = WatchedKeys("sk-option", str(file), "api_key").keys
    assert keys.find(b"sk-option").name == "default"
    assert keys.find(ALICE.encode()).name == "alice"
    assert WatchedKeys(None, None, "api_key").keys is None


def test_an_option_and_a_file_may_not_have_the_same_name_or_key(file):
    add(file, entry("default", "x"))
    with pytest.raises(ConfigError, match="'default' has the name or the key of api_key"):
        WatchedKeys("sk-option", str(file), "api_key")
    assert WatchedKeys(None, str(file), "api_key").keys.find(b"x").name == "default"
    with pytest.raises(ConfigError, match="'alice' has the name or the key of api_key"):
        WatchedKeys(ALICE, str(file), "api_key")


def test_e15_an_empty_file_is_an_error_at_the_start(tmp_path):
    file = tmp_path / "keys.toml"
    file.touch(0o600)
    with pytest.raises(ConfigError, match="no keys"):
        WatchedKeys(None, str(file), "api_key")


async def test_e15_a_process_that_starts_beside_a_broken_file_lets_nobody_in(backend, file):
    file.write_text("[[key")
    with capture_logs() as logs:
        app = create_app(backend, HttpConfig(api_keys_file=str(file), api_key="sk-option"))
    assert "not TOML" in logs[0]["reason"]
    async with make_client(backend, app=app) as client:
        for key, status in (("sk-option", 200), (ALICE, 401), ("", 401)):
            assert (await client.get("/v1/models", headers=bearer(key))).status_code == status


async def test_a_changed_file_counts(watching, file):
    assert (await watching(ALICE), await watching(BOB)) == (200, 401)
    add(file, entry("bob", BOB))
    await becomes(watching, BOB, 200)
    assert await watching(ALICE) == 200
    remove(file, "alice")
    await becomes(watching, ALICE, 401)
    assert await watching(BOB) == 200


async def test_a_change_that_keeps_time_and_size_counts(watching, file):
    before = file.stat()
    file.write_text(file.read_text().replace(hash_of(ALICE), hash_of(BOB)))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    await becomes(watching, BOB, 200)
    assert await watching(ALICE) == 401


async def test_a_broken_file_is_told_of_once_and_the_old_keys_stay(watching, file):
    good = file.read_text()
    with capture_logs() as logs:
        file.write_text("")
        await asyncio.sleep(0.2)
        assert await watching(ALICE) == 200
        file.unlink()
        await asyncio.sleep(0.2)
        assert await watching(ALICE) == 200
        file.write_text(good.replace(hash_of(ALICE), hash_of(BOB)))
        file.chmod(0o600)
        await becomes(watching, BOB, 200)
    told = [log["log_level"] for log in logs if log.get("what") == "api_keys_file"]
    assert 2 <= told.count("error") <= 3  # between its making and its closing a file may be seen empty
    assert all(ALICE not in str(log) and hash_of(ALICE) not in str(log) for log in logs)


async def test_who_asks_is_known_where_submissions_are_made(backend, file):
    app = create_app(backend, HttpConfig(api_keys_file=str(file)))
    async with make_client(backend, app=app) as client:
        answer = await client.post("/v1/completions", json=text(), headers=bearer(ALICE))
    assert answer.status_code == 200
    assert [(caller.name, caller.weight) for caller in backend.callers] == [("alice", 2.0)]


async def test_without_keys_anybody_asks(client, backend):
    assert (await client.post("/v1/completions", json=text())).status_code == 200
    assert [caller.name for caller in backend.callers] == [""]
