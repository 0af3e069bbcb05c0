"""The keys that a process takes now: the one of its options, and those of a file, which is read again when it changes.

Finding a key takes the same time whatever it has in common with others: it is looked up by its HMAC under a secret of
this process, and what was found is compared in constant time.
"""

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from actorlm.api.callers import Caller
from actorlm.api.key_file import Key, digest_of, hash_of, read_keys
from actorlm.api.watch import Watched
from actorlm.config import HttpConfig
from actorlm.errors import ConfigError

DEFAULT_NAME = "default"
"""The name of the one key that is an option."""

log = structlog.get_logger(__name__)


class Keys:
    """Finds whose a key is. `clock` tells Unix time in seconds."""

    def __init__(self, keys: list[Key], clock: Callable[[], float] = time.time) -> None:
        self._secret = secrets.token_bytes(32)
        self._clock = clock
        self._table: Mapping[bytes, tuple[bytes, Caller, float]] = {}
        self.use(keys)

    def use(self, keys: list[Key]) -> None:
        """Takes these keys from now on, and no others."""
        self._table = {
            self._place(key.digest): (key.digest, key.caller, key.expires.timestamp() if key.expires else float("inf"))
            for key in keys
        }

    def find(self, key: bytes) -> Caller | None:
        """Whose key this is; None for one that is unknown, or has expired."""
        digest = digest_of(key)
        known, caller, expires = self._table.get(self._place(digest), (bytes(len(digest)), None, 0.0))
        return caller if hmac.compare_digest(known, digest) and self._clock() < expires else None

    def names_shared_with(self, other: "Keys") -> list[str]:
        """The names here of keys that are there as well."""
        theirs = {digest for digest, _, _ in other._table.values()}  # noqa: SLF001 - of this class
        return [caller.name for digest, caller, _ in self._table.values() if digest in theirs]

    def _place(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


def open_keys(http: HttpConfig, *, tries_on: bool = False) -> tuple["WatchedKeys", "WatchedKeys"]:
    """Those of clients, and those of operators. Raises ConfigError as `WatchedKeys`, and for one that is both."""
    api = WatchedKeys(http.api_key, http.api_keys_file, "api_key", tries_on=tries_on)
    admin = WatchedKeys(http.admin_key, http.admin_keys_file, "admin_key", tries_on=tries_on, have_limits=False)
    if not tries_on and api.keys is not None and admin.keys is not None:
        for name in api.keys.names_shared_with(admin.keys):
            raise ConfigError(f"the key of {name!r} is an admin key and an API key; make another one")
    return api, admin


class WatchedKeys:
    """The keys of an option and of a file, which is read again when it changes. `what` the option is called.

    Raises ConfigError for a key that is empty. For a file that cannot be used too, unless `tries_on`: then only the
    option's key counts until it can; a process that replaces another one must not take the rest of the tree down.
    """

    def __init__(
        self, option: str | None, file: str | None, what: str, *, tries_on: bool = False, have_limits: bool = True
    ) -> None:
        if option is not None and not option.strip():
            raise ConfigError(f"{what} is empty; give a key, or leave it out")
        self._own = [] if option is None else [Key(name=DEFAULT_NAME, hash=hash_of(option))]
        self._what = what
        self._have_limits = have_limits
        self._watched = None if file is None else Watched(f"{what}s_file", [Path(file)], lambda: self._load(Path(file)))
        self.keys = None if option is None and file is None else Keys(self._first(tries_on))
        """None where nobody needs one."""

    async def watch(self) -> None:
        """Reads the file again when it changes, for ever; returns where there is none."""
        if self._watched is not None and self.keys is not None:
            await self._watched.watch(self.keys.use)

    def _first(self, tries_on: bool) -> list[Key]:
        if self._watched is None:
            return self._own
        try:
            return self._watched.read()
        except ConfigError as error:
            if not tries_on:
                raise
            log.error("nobody has a key of this file until it is repaired", what=self._what, reason=error.message)  # noqa: TRY400
            return self._own

    def _load(self, file: Path) -> list[Key]:
        keys = read_keys(file)
        for key in keys:
            if self._own and (key.name == DEFAULT_NAME or key.hash == self._own[0].hash):
                raise ConfigError(f"{file}: {key.name!r} has the name or the key of {self._what}; make another one")
            if not self._have_limits and key.caller != Caller(name=key.name):
                raise ConfigError(f"{file}: {key.name!r} has a weight or limits, without meaning here; leave them out")
        return [*self._own, *keys]
