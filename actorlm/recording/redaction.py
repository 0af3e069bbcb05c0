"""Token ids that say nothing of a text, and lead a scheduler to the same decisions.

A scheduler looks at ids only to compare prefixes, and for those that end a request. So each id becomes a keyed hash of
all ids before it and itself: equal prefixes stay equal, everything else looks random, equal words too. The ids that
end requests stay as they are, and all others are beyond the model's own. The key is forgotten with the recording.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from msgspec.structs import replace

from actorlm.messages.engine import Generate
from actorlm.sampling import SamplingParams
from actorlm.scheduling.plan import StepPlan
from actorlm.wire import int32, read_int32

IDS = 2**31 - 1
"""Ids below this fit a column: the vocabulary of a redacted recording."""


@dataclass(slots=True)
class _Chain:
    """The ids of one request so far: their hash, and how many there are."""

    state: bytes
    length: int


class Redaction:
    """The requests of one recording. Ids 0 to `vocab_size` - 1 are the model's."""

    def __init__(self, key: bytes, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._key = key
        self._vocab_size = vocab_size
        self._kept = frozenset(eos_token_ids)
        self._chains: dict[int, _Chain] = {}

    def generate(self, message: Generate, *, accepted: bool) -> Generate:
        """What is left of a request: lengths, what ends it, and who shares which prefix with whom."""
        salt = self._hash(message.cache_salt.encode()).hex() if message.cache_salt else ""
        chain = _Chain(self._hash(salt.encode()), 0)
        prompt = self._map(chain, read_int32(message.prompt_ids))
        generated = self._map(chain, read_int32(message.generated_ids))
        if accepted:
            self._chains[message.request] = chain
        return replace(
            message,
            prompt_ids=prompt,
            generated_ids=generated,
            sampling=_redacted(message.sampling),
            cache_salt=salt,
            tenant=self._hash(message.tenant.encode()).hex() if message.tenant else "",
            trace_id="",
            session="",
        )

    def forget(self, requests: Iterable[int]) -> None:
        """These have ended."""
        for request in requests:
            self._chains.pop(request, None)

    def sampled(self, plan: StepPlan, tokens: bytes) -> bytes:
        """A step's tokens. One of a request that has ended counts for nothing, and becomes 0."""
        found = []
        for row, token in zip(plan.sampled, read_int32(tokens), strict=False):
            request = plan.requests[row]
            chain = self._chains.get(request.id)
            if chain is None:
                found.append(0)
                continue
            (mapped,) = read_int32(self._map(chain, (token,)))
            output = chain.length - request.prompt_length
            stops = token in request.stop_ids and output >= request.sampling.min_tokens
            if stops or chain.length >= request.max_length:
                del self._chains[request.id]
            found.append(token if stops else mapped)
        return int32(found)

    def _map(self, chain: _Chain, ids: Iterable[int]) -> bytes:
        mapped = []
        for token in ids:
            chain.state = self._hash(chain.state + token.to_bytes(4, "little"))
            chain.length += 1
            beyond = int.from_bytes(chain.state, "little") % (IDS - self._vocab_size)
            mapped.append(token if token in self._kept else self._vocab_size + beyond)
        return int32(mapped)

    def _hash(self, data: bytes) -> bytes:
        return blake2b(data, key=self._key, digest_size=16).digest()


def _redacted(sampling: SamplingParams) -> SamplingParams:
    """What a scheduler asks of it: lengths and ends."""
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
    )
