"""Every inbox by the name of its receiver, and what follows from them: the fingerprint of this version's protocol."""

from functools import cache
from typing import Any, Union, get_args

from actorlm.messages import (
    actor,
    balancer,
    client,
    detokenizer,
    engine,
    executor,
    frontend,
    host,
    operator,
    supervisor,
    worker,
)
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
    "host": host.Inbox,
    "operator": operator.Inbox,
    "client": client.Inbox,
}


def from_peers(receiver: str) -> Any:
    """The union of what a receiver takes from peers: some things are the supervisor's alone to say."""
    supervisors = get_args(actor.FromSupervisor)
    return Union[tuple(kind for kind in get_args(INBOXES[receiver]) if kind not in supervisors)]  # noqa: UP007 - computed


@cache
def protocol() -> Fingerprint:
    """What both sides of every handshake must agree on."""
    return fingerprint(INBOXES, PROTOCOL_VERSION)
