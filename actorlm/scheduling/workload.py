"""The account of one replica's work: what it reports, and what it has been sent that its report cannot know.

A report says how many requests the replica had received when it was made. What was sent later counts by its estimate;
what was sent before is in the report, or has ended. So nothing counts twice. Must not know: other replicas.
"""

from collections import deque
from dataclasses import dataclass

from actorlm.scheduling.load import DECODE_COST, Load, work

BURST_S = 0.5


@dataclass(slots=True, eq=False)
class Sent:
    """A request that was sent at `at` seconds as the replica's `number`-th, and what was expected of it in tokens."""

    number: int
    prefill: int
    decode: int
    at: float
    lingers: bool = False
    is_past: bool = False

    @property
    def work(self) -> int:
        """In tokens of a prefill."""
        return work(self.prefill, self.decode)


class Workload:
    """The work of a replica whose KV cache holds `capacity` tokens, which has received nothing yet."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._load = Load()
        self._count = 0
        self._unreported: dict[int, Sent] = {}
        self._prefill = self._decode = 0
        """Of all that is unreported."""
        self._recent: deque[Sent] = deque()
        self._lingering = 0

    @property
    def expected(self) -> int:
        """What is left to do, in tokens of a prefill.

        Tokens that find no room in the KV cache wait until others have ended, and count as if generated meanwhile.
        """
        load = self._load
        excess = max(0, load.kv_used + load.waiting + self._prefill - self._capacity)
        return work(load.waiting + load.prefill + self._prefill, load.decode + self._decode) + DECODE_COST * excess

    def lingering(self, now: float) -> int:
        """The work of requests that have ended and were sent within the last BURST_S.

        It counts where a burst is dealt out: that one replica was quicker by milliseconds must not bring it the rest.
        """
        while self._recent and now - self._recent[0].at >= BURST_S:
            sent = self._recent.popleft()
            sent.is_past = True
            if sent.lingers:
                self._lingering -= sent.work
        return self._lingering

    def send(self, prefill: int, decode: int, now: float) -> Sent:
        """A request has been sent."""
        self._count += 1
        sent = self._unreported[self._count] = Sent(self._count, prefill, decode, now)
        self._prefill += prefill
        self._decode += decode
        self.lingering(now)
        self._recent.append(sent)
        return sent

    def spare(self, sent: Sent) -> None:
        """The request is being aborted, and counts no more."""
        if self._unreported.pop(sent.number, None) is not None:
            self._prefill -= sent.prefill
            self._decode -= sent.decode

    def end(self, sent: Sent) -> None:
        """The request has ended; told once."""
        self.spare(sent)
        if not sent.is_past:
            sent.lingers = True
            self._lingering += sent.work

    def report(self, received: int, load: Load) -> None:
        """What the replica says of its load, when it had received so many requests."""
        self._load = load
        while self._unreported and (number := next(iter(self._unreported))) <= received:
            self.spare(self._unreported[number])

    def check(self) -> None:
        """Proves the sums. Raises AssertionError."""
        unreported = self._unreported.values()
        assert self._prefill == sum(sent.prefill for sent in unreported), f"{self._prefill} tokens to prefill"
        assert self._decode == sum(sent.decode for sent in unreported), f"{self._decode} tokens to generate"
        assert self._lingering == sum(sent.work for sent in self._recent if sent.lingers), f"{self._lingering} linger"
        assert list(self._unreported) == sorted(self._unreported), "out of order"
