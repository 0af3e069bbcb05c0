"""The scheduling policy: who runs next, and how a step's tokens are divided.

- **Callers take turns.** The next request to enter a slot is one of the caller who has used least. What a request is
  expected to use is charged when it first enters, as tokens of a prefill (load.py) divided by the caller's weight, and
  is corrected when it ends. So while several callers have somebody waiting, what they get is as their weights are,
  whatever each of them sends; a caller of whom nobody waited starts level with the one who was let in last, and is next
  or nearly so. Nobody saves up turns or pays for having been alone: when nobody waits any more, all are level again.
- **Order within a caller.** Under fcfs that is the order of arrival. Under priority each level makes a request rank
  `AGEING_STEPS` steps later, so the lowest goes first, and who has waited so many steps longer counts as a level lower:
  the wait stays bounded. With one caller, as in a server without keys, this is all of the order.
- **Who has run comes first.** A request that was preempted, and one that resumes after a failure, stands before all
  that never ran, unless under priority the next of these is more urgent.
- **A suspect is alone.** A request that replicas may have died of is computed in steps of its own until it has a token:
  nothing else is in flight then, so that no other can be what the replica dies of.
- **Nobody is bypassed.** A head that finds no blocks waits for those who run, and whoever stands behind it waits with
  it. A running request moves until it ends, and with nobody running every request that was accepted fits.
- **Decodes first.** Every running decode gets its token in every step, so a gap between two tokens is one step of at
  most `max_num_batched_tokens`. For that, no more requests run than a step has tokens. A step may look ahead: it has
  the token after one that a step in flight is still sampling, except behind the last token that a request may have.
- **Prefills share the rest.** First in line first, those that run and then those that wait: each takes at most half of
  what is left; what nobody wants goes back to the first. So the first keeps half, and beside one long prefill a prompt
  that fits a quarter of the rest is computed in the first step that has a slot and blocks for it.
- **The last yields.** When a request needs a block and none is free, the one of those that run that entered last, under
  priority the least urgent, is preempted: it gives up its blocks, keeps its tokens, and waits in its old place. The
  first never yields: something always ends.
- **Scored prompts come in small chunks.** Where log-probabilities of prompts are asked for, at most `MAX_SCORED` such
  tokens are computed in a step: each has logits over the whole vocabulary.
- **A pipeline shares its decodes.** With more than one lane as many steps are in flight, each with at most its share of
  the decodes, in order of rank. None looks ahead: who is in flight waits for its token, so the others come next, and
  after as many steps as there are lanes all have moved. Chunks of one prompt follow each other in flight.
- **Who is in flight yields a step later.** It gets no further row, and is preempted when its tokens are known. Whoever
  needs a block meanwhile waits, as it waits for those of a request that has ended and is still in flight.
- **Room to grow.** A request enters only if its known tokens fit and one free block is left for each that runs already;
  else it would soon be preempted and its prefill lost.
"""

from actorlm.config import SchedulingPolicy

AGEING_STEPS = 256
"""Steps of waiting that weigh as much as one level of priority."""

MAX_SCORED = 512
"""Tokens of prompts in one step whose log-probabilities are asked for."""


class Shares:
    """Divides the tokens that one step has left for prefills, `scored` of them at most scored ones.

    Ask in order of rank.
    """

    def __init__(self, tokens: int, scored: int = MAX_SCORED) -> None:
        self.left = tokens
        self._scored_left = scored
        self._wanted: list[int] = []
        self._granted: list[int] = []

    def ask(self, tokens: int, *, scored: bool = False) -> int:
        """One more prefill, with so many tokens to compute. Gives what it will get at least."""
        if scored:
            tokens = min(tokens, self._scored_left)
            self._scored_left -= tokens
        granted = min(tokens, (self.left + 1) // 2)
        self.left -= granted
        self._wanted.append(tokens)
        self._granted.append(granted)
        return granted

    def settle(self) -> list[int]:
        """What each prefill gets, in the order in which they asked; 0 where the step had nothing left."""
        for index, wanted in enumerate(self._wanted):
            more = min(self.left, wanted - self._granted[index])
            self._granted[index] += more
            self.left -= more
        return self._granted


def urgency(policy: SchedulingPolicy, *, priority: int, step: int) -> int:
    """How urgent a request is that arrives before step `step`, the least first; of equals the first that came."""
    return step + AGEING_STEPS * priority if policy == "priority" else 0


def may_enter(*, blocks: int, free: int, running: int) -> bool:
    """Whether a request that takes so many free blocks may join those who run."""
    return blocks + running <= free
