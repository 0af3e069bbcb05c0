"""The account of one replica's work: what it reports, and what it has been sent that its report cannot know.

A report says how many requests the replica had received when it was made. What was sent later counts by its estimate;
what was sent before is in the report, or has ended. So nothing counts twice. Must not know: other replicas.
"""

from collections import deque
from dataclasses import dataclass

from actorlm.scheduling.load import BURST_S, DECODE_COST, Load, work


@dataclass(slots=True, eq=False)
class Sent:
    """The replica's `number`-th request, and what was expected of it in tokens."""

    number: int
    prefill: int
    decode: int


UNCOUNTED = Sent(0, 0, 0)
"""A request that a replica had before its account began: its reports have all of it."""


class Workload:
    """The work of a replica whose KV cache holds `capacity` tokens, which has received nothing yet."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._load = Load()
        self._count = 0
        self._unreported: dict[int, Sent] = {}
        self._prefill = self._decode = 0
        """Of all that is unreported."""
        self._progress: deque[tuple[float, int]] = deque()
        self._recent_progress = 0

    @property
    def waiting(self) -> int:
        """Tokens to prefill of requests that may wait: those that are reported, and all that was sent since."""
        return self._load.waiting + self._prefill

    @property
    def expected(self) -> int:
        """What is left to do, in tokens of a prefill.

        Tokens that find no room in the KV cache wait until others have ended, and count as if generated meanwhile.
        """
        load = self._load
        excess = max(0, load.kv_used + load.waiting + self._prefill - self._capacity)
        return work(load.waiting + load.prefill + self._prefill, load.decode + self._decode) + DECODE_COST * excess

    def before_progress(self, now: float) -> int:
        """What would be left if nothing had been done, or corrected by a report, in the last BURST_S.

        By this a burst is dealt out: that one replica was quicker by milliseconds must not bring it the rest.
        """
        while self._progress and now - self._progress[0][0] >= BURST_S:
            self._recent_progress -= self._progress.popleft()[1]
        return self.expected + self._recent_progress

    def send(self, prefill: int, decode: int) -> Sent:
        """A request has been sent."""
        self._count += 1
        sent = self._unreported[self._count] = Sent(self._count, prefill, decode)
        self._prefill += prefill
        self._decode += decode
        return sent

    def end(self, sent: Sent, now: float) -> None:
        """The request has ended, or is being aborted. It may be told again."""
        before = self.expected
        self._settle(sent)
        self._note_progress(before, now)

    def report(self, received: int, load: Load, now: float) -> None:
        """What the replica says of its load, when it had received so many requests."""
        before = self.expected
        self._load = load
        while self._unreported and (number := next(iter(self._unreported))) <= received:
            self._settle(self._unreported[number])
        self._note_progress(before, now)

    def check(self) -> None:
        """Proves the sums. Raises AssertionError."""
        unreported = self._unreported.values()
        assert self._prefill == sum(sent.prefill for sent in unreported), f"{self._prefill} tokens to prefill"
        assert self._decode == sum(sent.decode for sent in unreported), f"{self._decode} tokens to generate"
        assert self._recent_progress == sum(done for _, done in self._progress), f"{self._recent_progress} done"
        assert list(self._unreported) == sorted(self._unreported), "out of order"

    def _settle(self, sent: Sent) -> None:
        if self._unreported.pop(sent.number, None) is not None:
            self._prefill -= sent.prefill
            self._decode -= sent.decode

    def _note_progress(self, before: int, now: float) -> None:
        if before != self.expected:
            self._progress.append((now, before - self.expected))
            self._recent_progress += before - self.expected
            self.before_progress(now)
