"""The sockets of one replica, from both ends: its engine's, which leads, and its workers', who follow.

Whoever has started the workers, and wherever, this is how they meet their engine: a ROUTER where they introduce
themselves and are told the secret topic, the broadcast, and a PULL for their answers.
"""

from typing import Any

from actorlm.executors.broadcast import BroadcastExecutor
from actorlm.executors.ranks import Ranks
from actorlm.messages.actor import Control
from actorlm.messages.catalog import INBOXES
from actorlm.runtime.broadcast import Publisher, Subscriber, draw_topic
from actorlm.runtime.curve import NO_KEYS, Security
from actorlm.runtime.identity import Identity
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.network import Link, Network
from actorlm.topology import ReplicaSockets, Role

RESULTS_CAPACITY = 65_536


def lead(
    network: Network,
    sockets: ReplicaSockets,
    identity: Identity,
    ranks: Ranks,
    epoch: int,
    security: Security = NO_KEYS,
) -> tuple[BroadcastExecutor, Publisher[Any]]:
    """The engine's end: an executor of the workers that come. `epoch` is new with each start of the replica."""
    publisher = Publisher[Any](
        sockets.steps,
        epoch=epoch,
        topic=draw_topic(),
        inbox=INBOXES["worker"],
        security=security,
        admits=(Role.WORKER,),
    )
    mailbox: Mailbox[Any] = Mailbox(f"{sockets.engine}-results", RESULTS_CAPACITY, Overflow.PAUSE)
    network.serve(
        sockets.workers,
        identity=identity,
        mailbox=mailbox,
        inbox=INBOXES["executor"],
        admits=(Role.WORKER,),
        one_way={"results": sockets.results},
        topic=publisher.topic,
    )
    return BroadcastExecutor(mailbox, publisher, ranks, name=sockets.engine, epoch=epoch), publisher


def follow(network: Network, sockets: ReplicaSockets, identity: Identity, mailbox: Mailbox[Any]) -> Link:
    """A worker's link to its engine. Its Welcome brings the topic, and where to answer."""
    return network.connect(sockets.workers, peer=sockets.engine, identity=identity, mailbox=mailbox, inbox=Control)


def subscriber(sockets: ReplicaSockets, link: Link, epoch: int, security: Security = NO_KEYS) -> Subscriber[Any]:
    """A worker's end of the broadcast, once its link is up. Made in the thread that reads it."""
    return Subscriber(
        sockets.steps,
        epoch=epoch,
        topic=link.welcome.topic,
        inbox=INBOXES["worker"],
        security=security,
        server_role=Role.ENGINE,
    )
