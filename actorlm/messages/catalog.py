"""Every inbox by the name of its receiver, and what follows from them: the fingerprint of this version's protocol."""

from functools import cache
from typing import Any

from actorlm.messages import actor, balancer, detokenizer, engine, executor, frontend, operator, supervisor, worker
from actorlm.runtime.fingerprint import Fingerprint, fingerprint

PROTOCOL_VERSION = 1

INBOXES: dict[str, Any] = {
    "actor": actor.Control,
    "frontend": frontend.Inbox,
    "balancer": balancer.Inbox,
    "detokenizer": detokenizer.Inbox,
    "engine": engine.Inbox,
    "executor": executor.Inbox,
    "worker": worker.Inbox,
    "supervisor": supervisor.Inbox,
    "operator": operator.Inbox,
}


@cache
def protocol() -> Fingerprint:
    """What both sides of every handshake must agree on."""
    return fingerprint(INBOXES, PROTOCOL_VERSION)
