"""The lines of `actorlm generate`: a row asks, an answer tells what came of it. JSON, one object a line."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from actorlm.api.schema import AtLeastOne, ErrorDescription, PromptTokensDetails, Usage
from actorlm.api.schema_chat import Message
from actorlm.errors import ActorlmError, BadRequest, reason_of
from actorlm.invalid import json_fault
from actorlm.offline.logprobs import Place
from actorlm.offline.outputs import CompletionOutput, RequestOutput
from actorlm.params import DEFAULT_MAX_TOKENS, SamplingParams, Scored

MAX_NAMED = 10
"""Bad lines that one error names."""

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "messages")

Id = str | int


class Row(Scored, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of input: a prompt in one of three forms, perhaps an id, and sampling fields.

    `max_tokens` null is all the room that the prompt leaves; absent it is the command's default.
    """

    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    messages: list[Message] | None = None
    id: Id | None = None
    custom_id: Id | None = None
    max_tokens: AtLeastOne | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def prompt_field(self) -> str:
        """The field that holds its prompt."""
        return next(name for name in PROMPT_FIELDS if getattr(self, name) is not None)

    @property
    def key(self) -> Id | None:
        """What its author calls it."""
        return self.id if self.id is not None else self.custom_id

    def params(self, defaults: "Defaults") -> SamplingParams:
        """How its tokens are chosen."""
        fields = {name: getattr(self, name) for name in Scored.__struct_fields__}
        if self.temperature is None:
            fields["temperature"] = defaults.temperature
        wanted = defaults.max_tokens if self.max_tokens is msgspec.UNSET else self.max_tokens
        return SamplingParams(**fields, max_tokens=wanted)


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What rows get that do not say."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of output. `index` counts the rows of the input from 0; either `error` is set, or the rest."""

    index: int
    id: Id | None = None
    custom_id: Id | None = None
    choices: list[CompletionOutput] | None = None
    prompt_logprobs: list[Place | None] | None = None
    usage: Usage | None = None
    error: ErrorDescription | None = None

    @property
    def key(self) -> Id | None:
        """The row's id."""
        return self.id if self.id is not None else self.custom_id


_DECODER = msgspec.json.Decoder(Row)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of each line that is not blank. Raises BadRequest for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
    except OSError as error:
        raise BadRequest(f"{path}: {reason_of(error)}") from None


def parse(number: int, line: bytes) -> Row:
    """The row of a line. Raises BadRequest naming its number and the field at fault."""
    try:
        row = _DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise BadRequest(f"line {number}: {json_fault(error, line).message}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"line {number}: {error}") from None
    if sum(getattr(row, name) is not None for name in PROMPT_FIELDS) != 1:
        raise BadRequest(f"line {number}: it needs one of {', '.join(PROMPT_FIELDS)}")
    if row.id is not None and row.custom_id is not None:
        raise BadRequest(f"line {number}: id and custom_id are the same thing; give one")
    return row


def check_rows(path: Path) -> list[Id | None]:
    """The ids of all rows, in order. Raises BadRequest that names every bad line, or the first few."""
    keys: list[Id | None] = []
    lines: dict[Id, int] = {}
    bad: list[str] = []
    for number, line in read_lines(path):
        try:
            row = parse(number, line)
        except BadRequest as error:
            bad.append(error.message)
            continue
        keys.append(row.key)
        if row.key is not None and (first := lines.setdefault(row.key, number)) != number:
            bad.append(f"line {number}: its id {row.key!r} is that of line {first}, too")
    if bad:
        more = f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
        raise BadRequest(f"{path}: {'; '.join(bad[:MAX_NAMED])}{more}. Nothing was run")
    return keys


def answered(index: int, row: Row, output: RequestOutput) -> Answer:
    """The answer of a row that was run."""
    prompt, completion = len(output.prompt_token_ids), sum(len(choice.token_ids) for choice in output.outputs)
    cached = PromptTokensDetails(output.num_cached_tokens)
    usage = Usage(prompt, completion, prompt + completion, cached)
    return Answer(
        index=index,
        id=row.id,
        custom_id=row.custom_id,
        choices=output.outputs,
        prompt_logprobs=output.prompt_logprobs,
        usage=usage,
    )


def refused(index: int, row: Row, error: ActorlmError) -> Answer:
    """The answer of a row that could not be."""
    described = ErrorDescription(error.message, error.type, error.param, error.code)
    return Answer(index=index, id=row.id, custom_id=row.custom_id, error=described)
