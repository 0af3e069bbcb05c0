"""Log-probabilities of tokens, in columns: in memory as on the wire, because a slow reader may let many gather.

They are natural logarithms of the model's own distribution, before anything that sampling does to it. An entry is about
one token of a sequence: its rank, and candidates with their log-probabilities. The first candidate is the token itself;
then come as many of the most probable tokens as were asked for, best first, and then those that were asked for by id.
The rank is the number of tokens that are at least as probable, the token itself among them: 1 is best.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from actorlm.errors import ProtocolError
from actorlm.wire import Float32, Int32, Message, int32, read_int32


class Entry(NamedTuple):
    """What is known of one token: `others` are the candidates after it, as (token id, log-probability)."""

    token: int
    logprob: float
    rank: int
    others: list[tuple[int, float]]


class Entries:
    """Entries one after another. `widths` counts the candidates of each, `ids` and `values` are those of all."""

    __slots__ = ("ids", "ranks", "values", "widths")

    def __init__(
        self, widths: Iterable[int] = (), ranks: Iterable[int] = (), ids: Iterable[int] = (), values: bytes = b""
    ) -> None:
        self.widths = array("i", widths)
        self.ranks = array("i", ranks)
        self.ids = array("i", ids)
        self.values = array("f", values)

    def __len__(self) -> int:
        return len(self.widths)

    def __iter__(self) -> Iterator[Entry]:
        begin = 0
        for width, rank in zip(self.widths, self.ranks, strict=True):
            token, *others = zip(self.ids[begin : begin + width], self.values[begin : begin + width], strict=True)
            yield Entry(*token, rank, others)
            begin += width

    @property
    def size(self) -> int:
        """Bytes that the entries take."""
        return 8 * (len(self.widths) + len(self.ids))

    def append(self, rank: int, ids: Sequence[int], values: Sequence[float]) -> None:
        """One more entry; its candidates are `ids`."""
        self.widths.append(len(ids))
        self.ranks.append(rank)
        self.ids.extend(ids)
        self.values.extend(values)

    def extend(self, more: "Entries") -> None:
        """The entries of another come behind these."""
        self.widths.extend(more.widths)
        self.ranks.extend(more.ranks)
        self.ids.extend(more.ids)
        self.values.extend(more.values)

    def part(self, begin: int, end: int | None = None) -> "Entries":
        """Entries `begin` to `end`, as slices count."""
        first, last = sum(self.widths[:begin]), sum(self.widths[:end])
        values = self.values[first:last].tobytes()
        return Entries(self.widths[begin:end], self.ranks[begin:end], self.ids[first:last], values)


class Scores:
    """What a request gained: entries for prompt tokens from position `start` on, and one for each new token.

    The first token of a prompt has no entry, because nothing comes before it.
    """

    __slots__ = ("output", "prompt", "start")

    def __init__(self, start: int = 1, prompt: Entries | None = None, output: Entries | None = None) -> None:
        self.start = start
        self.prompt = Entries() if prompt is None else prompt
        self.output = Entries() if output is None else output

    def __bool__(self) -> bool:
        return bool(self.prompt) or bool(self.output)

    @property
    def end(self) -> int:
        """The first prompt position after the entries."""
        return self.start + len(self.prompt)

    @property
    def size(self) -> int:
        """Bytes that the entries take."""
        return self.prompt.size + self.output.size

    def forget_prompt(self, position: int) -> None:
        """Drops entries for prompt tokens before `position`: a prompt that is computed again is delivered once."""
        if position > self.start:
            self.prompt, self.start = self.prompt.part(position - self.start), position

    def extend(self, more: "Scores") -> None:
        """What came later is added."""
        if len(more.prompt):
            if not len(self.prompt):
                self.start = more.start
            more.forget_prompt(self.end)
            self.prompt.extend(more.prompt)
        self.output.extend(more.output)


def joined(before: Scores | None, after: Scores | None) -> Scores | None:
    """Both, in the first of them that there is."""
    if before is None or after is None:
        return after if before is None else before
    before.extend(after)
    return before


class Logprobs(Message):
    """The scores of all rows of one message.

    Row i has `prompts[i]` entries, about prompt tokens from position `starts[i]` on, and then `outputs[i]`, about its
    new tokens. `widths` and `ranks` are columns of entries, `ids` and `values` of candidates. Part of other messages.
    """

    starts: Int32
    prompts: Int32
    outputs: Int32
    widths: Int32
    ranks: Int32
    ids: Int32
    values: Float32

    def check(self, rows: int) -> None:
        """Raises ProtocolError for columns that do not fit together or to a message of so many rows."""
        columns = (self.starts, self.prompts, self.outputs, self.widths, self.ranks, self.ids)
        if any(max(column[3::4], default=0) > 127 for column in columns):
            raise ProtocolError("Logprobs has a negative value")
        entries = sum(read_int32(self.prompts)) + sum(read_int32(self.outputs))
        candidates = sum(read_int32(self.widths))
        expected = [rows, rows, rows, entries, entries, candidates, candidates]
        if [len(column) // 4 for column in (*columns, self.values)] != expected:
            raise ProtocolError(f"Logprobs has other than {rows} rows, {entries} entries, {candidates} candidates")
        if entries and not min(read_int32(self.widths)):
            raise ProtocolError("Logprobs has an entry without a token")


def pack(rows: Sequence[Scores | None]) -> Logprobs | None:
    """The scores of a message's rows, None where there are none."""
    if not any(rows):
        return None
    every = [Scores() if scores is None else scores for scores in rows]
    entries = Entries()
    for scores in every:
        entries.extend(scores.prompt)
        entries.extend(scores.output)
    return Logprobs(
        starts=int32(scores.start for scores in every),
        prompts=int32(len(scores.prompt) for scores in every),
        outputs=int32(len(scores.output) for scores in every),
        widths=entries.widths.tobytes(),
        ranks=entries.ranks.tobytes(),
        ids=entries.ids.tobytes(),
        values=entries.values.tobytes(),
    )


def unpack(message: Logprobs) -> list[Scores | None]:
    """The scores of each row, None where it has no entry. The message has been checked."""
    reader = _Reader(message)
    columns = map(read_int32, (message.starts, message.prompts, message.outputs))
    return [
        Scores(start, reader.take(prompts), reader.take(outputs)) if prompts or outputs else None
        for start, prompts, outputs in zip(*columns, strict=True)
    ]


class _Reader:
    """The entries of a message, from its first to its last."""

    def __init__(self, message: Logprobs) -> None:
        self._widths, self._ranks = read_int32(message.widths), read_int32(message.ranks)
        self._ids, self._values = read_int32(message.ids), message.values
        self._entry = self._candidate = 0

    def take(self, count: int) -> Entries:
        """The next entries."""
        entry, candidate = self._entry, self._candidate
        self._entry = end = entry + count
        widths = self._widths[entry:end]
        self._candidate = last = candidate + sum(widths)
        values = self._values[4 * candidate : 4 * last]
        return Entries(widths, self._ranks[entry:end], self._ids[candidate:last], values)
