"""What an EngineCore receives from the balancer."""

from typing import Annotated

from msgspec import Meta

from actorlm.messages.actor import Control
from actorlm.sampling import SamplingParams
from actorlm.wire import Int32, Int64, Message, Natural, RequestId, Session

MAX_PRIORITY = 1000

Weight = Annotated[float, Meta(gt=0, le=1e6)]


class Generate(Message):
    """Generate tokens for one choice of one request.

    `request` is unique over all frontends and their restarts. `attempt` counts from 0; an attempt above 0 brings
    the `generated_ids` of those before it, which count as output (length, penalties, seed position) and are never
    delivered again. `detokenizer` is the index of the one that holds the text.
    A lower `priority` goes first among those of its `tenant`, where priorities count; it lies within MAX_PRIORITY of 0.
    Tenants share a replica in proportion to their `weight`. Only requests of the same
    `cache_salt` share prefixes. `adapter` is reserved. `session` and `replica` are for the balancer, which chooses this
    replica if one is set, else the one where the session was, if it has one and that is not overloaded. A `suspect` is
    computed in steps of its own until it has a token. The times of one that is `traced` are reported by HopEnded.
    """

    request: RequestId
    attempt: Natural
    frontend: str
    detokenizer: Natural
    prompt_ids: Int32
    generated_ids: Int32
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    adapter: str | None = None
    trace_id: str = ""
    session: Session = ""
    replica: Natural | None = None
    tenant: str = ""
    weight: Weight = 1.0
    suspect: bool = False
    traced: bool = False


class Abort(Message):
    """Stop these requests, whatever phase they are in. Unknown ones are ignored: they have ended already."""

    requests: Int64


Inbox = Generate | Abort | Control
