"""Files of API keys: what they may say, how keys are added and removed, and that no key is in them."""

import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from actorlm.api.key_edit import add, remove
from actorlm.api.key_file import Key, check_strength, digest_of, hash_of, make_key, parse, read_keys
from actorlm.errors import ConfigError

HASH = hash_of("a")


def entry(name="alice", secret="a", **fields):
    return Key(name=name, hash=hash_of(secret), **fields)


def test_made_keys_differ_and_are_strong():
    keys = {make_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        check_strength(key)


@pytest.mark.parametrize(
    "key",
    ["", "short", "a" * 64, "ab" * 32, "0123456789abcdef", "with space" * 8, "schl\u00fcssel" * 8, "x\n" * 32],
)
def test_keys_that_can_be_guessed_or_lost_are_refused(key):
    with pytest.raises(ConfigError, match="the key has"):
        check_strength(key)


def test_random_hexadecimal_digits_are_a_key():
    check_strength("9f86d081884c7d659a2feaa0c55ad015")


def test_a_hash_is_that_of_sha256sum():
    assert hash_of("hello") == "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert entry(secret="hello").digest == digest_of(b"hello")


def test_what_a_key_says_is_what_its_caller_may(tmp_path):
    text = f"""
    [[key]]
    name = "alice"
    hash = "{HASH}"
    weight = 2.5
    max_requests = 3
    requests_per_minute = 60
    tokens_per_minute = 1000
    cache_salt = "team-a"
    expires = 2027-06-30T02:00:00+02:00
    """
    [key] = parse(text)
    caller = key.caller
    assert (caller.name, caller.weight, caller.max_requests) == ("alice", 2.5, 3)
    assert (caller.requests_per_minute, caller.tokens_per_minute, caller.cache_salt) == (60, 1000, "team-a")
    assert key.expires == datetime(2027, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no keys"),
        ("# only words", "no keys"),
        ("key = []", "no keys"),
        ("[[key]", "not TOML"),
        ("[[keys]]", "unknown field `keys`"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\nlimit = 1', "unknown field `limit`"),
        (f'[[key]]\nhash = "{HASH}"', "required field `name`"),
        ('[[key]]\nname = "a"', "required field `hash`"),
        ('[[key]]\nname = "a"\nhash = "sk-plain"', r"key\[0\].hash is"),
        ('[[key]]\nname = "a"\nhash = "md5:00"', r"key\[0\].hash is"),
        (f'[[key]]\nname = "a b"\nhash = "{HASH}"', r"key\[0\].name is"),
        (f'[[key]]\nname = ""\nhash = "{HASH}"', r"key\[0\].name is"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\nweight = 0', r"key\[0\].weight is 0"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\nweight = nan', r"key\[0\].weight"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\nmax_requests = 0', r"key\[0\].max_requests is 0"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\nexpires = 2027-01-01T00:00:00', r"key\[0\].expires"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\nexpires = "soon"', r"key\[0\].expires"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\n[[key]]\nname = "a"\nhash = "{hash_of("b")}"', "named 'a'"),
        (f'[[key]]\nname = "a"\nhash = "{HASH}"\n[[key]]\nname = "b"\nhash = "{HASH}"', "'a' and 'b'"),
    ],
)
def test_what_a_file_may_not_say(tmp_path, text, named):
    file = tmp_path / "keys.toml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=named) as raised:
        read_keys(file)
    assert str(file) in raised.value.message


def test_a_file_that_others_may_write_is_not_read(tmp_path):
    file = tmp_path / "keys.toml"
    add(file, entry())
    file.chmod(0o660)
    with pytest.raises(ConfigError, match=r"keys\.toml.*chmod go-w"):
        read_keys(file)
    with pytest.raises(ConfigError, match="chmod go-w"):
        add(file, entry("bob", "b"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.toml: No such file"):
        read_keys(tmp_path / "nothing.toml")


def test_keys_are_added_and_removed_around_what_is_there(tmp_path):
    file = tmp_path / "keys.toml"
    file.write_text("# ours\n")
    file.chmod(0o640)
    expiring = entry(weight=2.0, max_requests=4, expires=datetime(2027, 1, 1, tzinfo=UTC))
    add(file, expiring)
    add(file, entry("bob", "b"))
    file.write_text(file.read_text() + "# bob's second machine\n")
    add(file, entry("carol", "c", tokens_per_minute=7))
    assert read_keys(file) == [expiring, entry("bob", "b"), entry("carol", "c", tokens_per_minute=7)]
    remove(file, "alice")
    assert read_keys(file) == [entry("bob", "b"), entry("carol", "c", tokens_per_minute=7)]
    assert file.read_text().startswith("# ours\n")
    assert "# bob's second machine\n" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["keys.toml"]


def test_a_new_file_is_its_owners_alone(tmp_path):
    add(tmp_path / "keys.toml", entry())
    assert (tmp_path / "keys.toml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("other", [entry(secret="b"), entry(name="bob")])
def test_a_name_and_a_key_are_there_once(tmp_path, other):
    file = tmp_path / "keys.toml"
    add(file, entry())
    before = file.read_text()
    with pytest.raises(ConfigError, match="two keys are named|have the same key"):
        add(file, other)
    assert file.read_text() == before


def test_the_last_key_and_unknown_ones_are_not_removed(tmp_path):
    file = tmp_path / "keys.toml"
    add(file, entry())
    with pytest.raises(ConfigError, match="last key"):
        remove(file, "alice")
    with pytest.raises(ConfigError, match=r"no key is named 'bob'; there are alice"):
        remove(file, "bob")
    assert read_keys(file) == [entry()]


def test_keys_that_are_written_in_another_way_are_left_to_an_editor(tmp_path):
    file = tmp_path / "keys.toml"
    rows = [f'{{name = "{name}", hash = "{hash_of(name)}"}}' for name in ("a", "b")]
    file.write_text(f"key = [{', '.join(rows)}]\n")
    file.chmod(0o600)
    before = file.read_text()
    with pytest.raises(ConfigError, match="editor"):
        remove(file, "a")
    with pytest.raises(ConfigError, match="not TOML"):
        add(file, entry())
    assert file.read_text() == before


def api_keys(*arguments, **options):
    command = [sys.executable, "-m", "actorlm", "api-keys", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_the_command_prints_a_key_once(tmp_path):
    file = tmp_path / "keys.toml"
    made = api_keys("add", "alice", "--file", file, "--weight", "2", "--expires", "2020-01-01")
    assert made.returncode == 0
    key = made.stdout.strip()
    assert re.fullmatch(r"sk-actorlm-[\w-]{43}", key)
    assert key not in made.stderr + file.read_text()
    assert [one.digest for one in read_keys(file)] == [digest_of(key)]
    listed = api_keys("list", "--file", file)
    assert listed.stdout == "alice  weight 2, expired 2020-01-01T00:00:00+00:00\n"
    brought = api_keys("add", "bob", "--key-stdin", "--file", file, input=f"{make_key()}\n")
    assert (brought.returncode, brought.stdout) == (0, "")
    assert api_keys("remove", "alice", "--file", file).returncode == 0
    assert [one.name for one in read_keys(file)] == ["bob"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["add", "x", "--weight", "0"], "weight is 0"),
        (["add", "a b"], 'name is "a b"'),
        (["add", "x", "--expires", "soon"], "--expires is 'soon'"),
        (["add", "x", "--key-stdin"], "the key has 0 characters"),
        (["remove", "x"], "No such file"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, arguments, named):
    ended = api_keys(*arguments, "--file", tmp_path / "keys.toml", input="")
    assert ended.returncode == 2
    assert ended.stderr.startswith("actorlm: ")
    assert named in ended.stderr
    assert not (tmp_path / "keys.toml").exists()
