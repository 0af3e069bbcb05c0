"""Who asks: what the key of a request stands for, and what it may use.

The default caller, of a server without keys, has no name and no limits.
"""

import msgspec


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """One key's owner. Requests of equal `name` share its limits, and one share of each replica, by `weight`.

    `max_requests` may be open at once; `requests_per_minute` and `tokens_per_minute`, prompt and output, may begin
    within a minute. None is no limit.
    """

    name: str = ""
    weight: float = 1.0
    max_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


ANYBODY = Caller()
