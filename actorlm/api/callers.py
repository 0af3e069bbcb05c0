"""Who asks: what the key of a request stands for, and what it may use.

The default caller, of a server without keys, has no name and no limits.
"""

import msgspec


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """One key's owner. Requests of equal `name` share its limits, and one share of each replica, by `weight`.

    `max_requests` may be open at once; `requests_per_minute` and `tokens_per_minute`, prompt and output, may begin
    within a minute. None is no limit. Only callers of equal `cache_salt` share cached prefixes.
    """

    name: str = ""
    weight: float = 1.0
    max_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    cache_salt: str = ""

    def salt(self, requested: str) -> str:
        """What separates cached prefixes: the caller's own salt, which nobody else can request, and `requested`."""
        return f"{self.cache_salt}\0{requested}" if self.cache_salt or requested else ""


ANYBODY = Caller()
