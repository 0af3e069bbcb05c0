"""Numbers of requests: unique over all frontends of a tree and all their restarts, and they name their frontend."""

from itertools import count

MAX_INCARNATION = 0xFFFF


def request_ids(frontend: int, incarnation: int) -> "count[int]":
    """The numbers that one incarnation of one frontend gives, in order. They fit int64."""
    return count(frontend << 48 | (incarnation & MAX_INCARNATION) << 32)


def frontend_of(request: int) -> str:
    """The name of the frontend that gave this number."""
    return f"frontend-{request >> 48}"
