"""The attempts of a frontend's choices: each goes to a detokenizer, then to an engine, and again after what was lost.

Owns: how far each attempt has got, who waits for a part of the tree that is away, who is suspect. Sends Open, Generate,
Abort, Inventory, Acquitted. Must not know: who reads the text.

Whatever dies behind the frontend, its choices go on with their next attempt: the ids that were delivered come with it
and are never delivered again. A choice whose replica has died twice without a token of its own in between is suspect,
because it may be the cause: suspects run alone, one at a time, and one whose replica dies once more is failed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import structlog

from actorlm.actors.generation import NOWHERE, Choice, Phase
from actorlm.actors.membership import Membership
from actorlm.actors.spans import NoSpans
from actorlm.errors import ActorlmError, Poisoned
from actorlm.messages.balancer import Acquitted, Inventory, RequestRefused
from actorlm.messages.detokenizer import Open
from actorlm.messages.engine import Abort, Generate
from actorlm.messages.frontend import FleetChanged, Opened, RequestsInterrupted
from actorlm.messages.supervisor import PeerStuck
from actorlm.runtime.errors import NotConnected, PeerFull
from actorlm.runtime.network import Link
from actorlm.text.detokenize import CONTEXT_LENGTH
from actorlm.wire import Message, int32, int64, read_int32, read_int64

SUSPECT_AFTER = 2
"""Deaths of its replica in a row, without a token in between, that make a choice suspect."""
UNAVAILABLE = 503
NO_FLEET = FleetChanged((), 0, 0)

log = structlog.get_logger(__name__)


class Attempts:
    """Of the choices in `table`, by number. `fail` ends one with an error."""

    def __init__(
        self,
        frontend: str,
        table: Mapping[int, Choice],
        *,
        balancer: Link,
        detokenizers: Mapping[int, Link],
        membership: Membership,
        spans: NoSpans,
        fail: Callable[[Choice, ActorlmError], None],
    ) -> None:
        self._frontend = frontend
        self._table = table
        self._balancer = balancer
        self._detokenizers = detokenizers
        self._turn = -1
        self._membership = membership
        self._spans = spans
        self._fail = fail
        self._waiting: dict[int, Choice] = {}
        self.fleet = NO_FLEET
        """The replicas that take requests."""

    @property
    def reach_all_roles(self) -> bool:
        """Whether a new attempt would get to an engine now."""
        texts = any(link.is_up for link in self._detokenizers.values())
        return texts and self._balancer.is_up and bool(self.fleet.replicas)

    def begin(self, choice: Choice) -> None:
        """Takes a choice as far as it gets now."""
        if choice.phase is Phase.CLOSED:
            self._open_text(choice)
        elif choice.phase is Phase.OPEN:
            self._generate(choice)

    def go_on(self) -> None:
        """Something is back: whoever waits tries again."""
        waiting, self._waiting = self._waiting, {}
        for number, choice in waiting.items():
            if self._table.get(number) is choice:
                self.begin(choice)

    def opened(self, message: Opened) -> None:
        """A detokenizer holds the text."""
        choice = self._table.get(message.request)
        if choice is not None and choice.attempt == message.attempt and choice.phase is Phase.OPENING:
            choice.phase = Phase.OPEN
            self.begin(choice)

    def gained(self, choice: Choice) -> None:
        """The choice has got a token: it is not what its replicas died of."""
        choice.deaths = 0
        if choice.is_suspect:
            choice.is_suspect = False
            self._tell(self._balancer, Acquitted(choice.id))

    def refused(self, message: RequestRefused) -> bool:
        """Whether the refused attempt waits for another replica: who was accepted waits, however long one is away."""
        choice = self._table.get(message.request)
        if choice is None or choice.attempt != message.attempt:
            return True
        insists = choice.placement.replica is not None and not choice.attempt
        if message.status != UNAVAILABLE or insists:
            return False
        choice.phase = Phase.OPEN
        self._waiting[choice.id] = choice
        return True

    def interrupted(self, message: RequestsInterrupted) -> None:
        """These attempts are lost, and so is what they knew."""
        rows = zip(read_int64(message.requests), read_int32(message.attempts), strict=True)
        lost = [choice for row in rows if (choice := self._table.get(row[0])) and choice.attempt == row[1]]
        if message.blames:
            for choice in lost:
                choice.deaths += 1
        self._begin_next(lost, message.cause)

    def lose_texts(self, peer: str) -> None:
        """A detokenizer is gone, or may not have got what was said to it. Engines still work for what is lost."""
        lost = [choice for choice in self._table.values() if self._is_open_at(choice, peer)]
        sent = [choice.id for choice in lost if choice.phase is Phase.SENT]
        if sent:
            self._tell(self._balancer, Abort(int64(sent)))
        self._begin_next(lost, peer)

    def take_stock(self) -> None:
        """Tells a balancer that is new, or may not have got what was said to it, what is at engines."""
        sent = [choice for choice in self._table.values() if choice.phase is Phase.SENT]
        requests = int64(choice.id for choice in sent)
        self._tell(self._balancer, Inventory(requests, int32(choice.attempt for choice in sent)))

    def _is_open_at(self, choice: Choice, peer: str) -> bool:
        return choice.phase is not Phase.CLOSED and self._detokenizers[choice.detokenizer].peer == peer

    def _begin_next(self, lost: Iterable[Choice], cause: str) -> None:
        """The next attempt of each, unless it is to blame."""
        outcomes: Counter[str] = Counter()
        for choice in lost:
            if self._table.get(choice.id) is not choice:
                continue  # it ended with another choice of its request
            if choice.is_suspect and choice.deaths > SUSPECT_AFTER:
                outcomes["failed"] += 1
                self._fail(choice, Poisoned(_verdict(choice, cause)))
                continue
            outcomes["resumed"] += 1
            log.debug("interrupted", request_id=choice.trace_id, request=choice.id, cause=cause, tokens=len(choice.ids))
            choice.is_suspect = choice.deaths >= SUSPECT_AFTER
            choice.attempt += 1
            choice.phase = Phase.CLOSED
            self.begin(choice)
        if outcomes:
            self._membership.metrics.add("requests_resumed", outcomes["resumed"], (cause.partition("-")[0],))
            log.warning("requests were interrupted", cause=cause, **outcomes)

    def _open_text(self, choice: Choice) -> None:
        """Opens the text where its last attempt was, which replaces that, or at the next detokenizer that takes it."""
        submission = choice.submission
        message = Open(
            request=choice.id,
            attempt=choice.attempt,
            context_ids=int32(submission.prompt_ids[-CONTEXT_LENGTH:]),
            generated_ids=choice.ids.tobytes(),
            delivered_characters=choice.characters,
            stop=submission.stop,
            include_stop=submission.include_stop,
            skip_special_tokens=submission.skip_special_tokens,
            spaces_between_special_tokens=submission.spaces_between_special_tokens,
            trace_id=choice.trace_id,
            traced=self._spans.traced(choice),
        )
        for index in self._in_turn(choice):
            if self._tell(self._detokenizers[index], message):
                choice.detokenizer = index
                choice.phase = Phase.OPENING
                return
        self._waiting[choice.id] = choice

    def _in_turn(self, choice: Choice) -> list[int]:
        """The detokenizers in the order in which they are tried."""
        self._turn = (self._turn + 1) % len(self._detokenizers)
        indexes = list(self._detokenizers)
        others = indexes[self._turn :] + indexes[: self._turn]
        return others if choice.detokenizer == NOWHERE else [choice.detokenizer, *others]

    def _generate(self, choice: Choice) -> None:
        """Asks for an engine, unless none would be found."""
        if self.fleet.replicas and self._tell(self._balancer, self._request(choice)):
            choice.phase = Phase.SENT
            self._spans.sent(choice)
            log.debug("sent", request_id=choice.trace_id, request=choice.id, attempt=choice.attempt)
        else:
            self._waiting[choice.id] = choice

    def _request(self, choice: Choice) -> Generate:
        submission, placement = choice.submission, choice.placement
        return Generate(
            request=choice.id,
            attempt=choice.attempt,
            frontend=self._frontend,
            detokenizer=choice.detokenizer,
            prompt_ids=int32(submission.prompt_ids),
            generated_ids=choice.ids.tobytes(),
            sampling=submission.sampling,
            priority=submission.priority,
            cache_salt=choice.caller.salt(submission.cache_salt),
            trace_id=choice.trace_id,
            session=placement.session,
            replica=None if choice.attempt else placement.replica,
            suspect=choice.is_suspect,
            traced=self._spans.traced(choice),
            tenant=choice.caller.name,
            weight=choice.caller.weight,
        )

    def _tell(self, link: Link, message: Message) -> bool:
        """Whether the message has left. A peer that is gone will come back; one that is full is stuck."""
        try:
            link.send(message)
        except NotConnected:
            return False
        except PeerFull:
            self._membership.say(PeerStuck(link.peer))
            return False
        return True


def _verdict(choice: Choice, cause: str) -> str:
    return (
        f"{choice.deaths} times in a row the replica died that worked on this request before it had a token, the last"
        f" time ({cause}) with this request alone in its step; it is not tried again"
    )
