"""A file of API keys: what it says, and how keys are made.

    [[key]]
    name = "alice"
    hash = "sha256:5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"
    weight = 2.0
    requests_per_minute = 600
    expires = 2027-06-30T00:00:00Z

A key is never stored, only its SHA-256. Slow and salted hashes are for passwords, which can be guessed: a key has 256
random bits, so trying keys is hopeless at any speed, and a slow hash would only cost every request its time. Keys that
somebody brings are refused where they look guessable.
"""

import hashlib
import secrets
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from actorlm.api.callers import Caller
from actorlm.errors import ConfigError, reason_of
from actorlm.invalid import fault
from actorlm.ownership import check_trusted

PREFIX = "sk-actorlm-"
RANDOM_BYTES = 32
MIN_CHARACTERS = 32
MIN_DIFFERENT = 10
"""Of a key that somebody brings: what 32 random hexadecimal digits have."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Name = Annotated[str, Meta(pattern=NAME)]
Hash = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
AtLeastOne = Annotated[int, Meta(ge=1)]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One entry: whose key it is, its hash, its owner's share and limits as in `Caller`, and when it ends to be one."""

    name: Name
    hash: Hash
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    max_requests: AtLeastOne | None = None
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None
    cache_salt: Name | None = None
    expires: Annotated[datetime, Meta(tz=True)] | None = None

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the key."""
        return bytes.fromhex(self.hash.removeprefix("sha256:"))

    @property
    def caller(self) -> Caller:
        """Who asks with this key."""
        return Caller(
            name=self.name,
            weight=self.weight,
            max_requests=self.max_requests,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            cache_salt=self.cache_salt or "",
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: list[Key]


def make_key() -> str:
    """A new random key."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_of(key: str | bytes) -> str:
    """What a file says of a key."""
    return "sha256:" + digest_of(key).hex()


def digest_of(key: str | bytes) -> bytes:
    """The SHA-256 of a key."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def check_strength(key: str) -> None:
    """Raises ConfigError for a key that a header may lose, or that somebody could guess."""
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("the key has characters that a header may lose; take letters and digits")
    if len(key) < MIN_CHARACTERS or len(set(key)) < MIN_DIFFERENT:
        raise ConfigError(
            f"the key has {len(key)} characters, {len(set(key))} different ones; what is safe without a slow hash has"
            f" at least {MIN_CHARACTERS}, {MIN_DIFFERENT} different ones: leave it to actorlm to make one"
        )


def read_keys(file: Path) -> list[Key]:
    """The keys of a file, at least one. Raises ConfigError naming the file and the key at fault."""
    try:
        check_trusted(file)
        return parse(file.read_text())
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{file}: {reason_of(error)}") from None


def parse(text: str) -> list[Key]:
    """The keys of a file's text, at least one. Raises ConfigError naming the key at fault."""
    table: Any = None
    try:
        table = tomllib.loads(text)
        keys = msgspec.convert(table, _File).key
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from None
    except msgspec.ValidationError as error:
        if not table:
            raise ConfigError("it has no keys; make one with `actorlm api-keys add`") from None
        raise ConfigError(fault(error, table).message) from None
    if not keys:
        raise ConfigError("it has no keys; make one with `actorlm api-keys add`")
    _check_unique(keys)
    return keys


def _check_unique(keys: list[Key]) -> None:
    names, hashes = set[str](), dict[str, str]()
    for key in keys:
        if key.name in names:
            raise ConfigError(f"two keys are named {key.name!r}; give each its own name")
        if key.hash in hashes:
            raise ConfigError(f"{hashes[key.hash]!r} and {key.name!r} have the same key; make another one")
        names.add(key.name)
        hashes[key.hash] = key.name
