"""What a run of `actorlm bench serve` comes to. Pure; the structs are the JSON that it writes."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from actorlm.bench.distribution import Distribution, distribution
from actorlm.bench.recording import Outcome
from actorlm.bench.serve import Run
from actorlm.bench.traffic import Traffic


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Of the planned ones; `empty` ones are complete and said nothing, `peak` were under way together."""

    planned: int
    complete: int
    failed: int
    interrupted: int
    not_sent: int
    empty: int
    peak: int


class Failures(msgspec.Struct, frozen=True):
    """Requests that failed alike, and what the server said to one of them."""

    kind: str
    count: int
    example: str


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Of complete requests; from the first that was sent to the last end. `counted` False: by events, without usage."""

    seconds: float
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    counted: bool


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds. The first two count interrupted streams, too; None where nothing was measured."""

    time_to_first_token_ms: Distribution | None
    between_events_ms: Distribution | None
    time_per_output_token_ms: Distribution | None
    end_to_end_ms: Distribution | None


class ClientCost(msgspec.Struct, frozen=True):
    """What measuring took. Near one core, figures are those of this client and not of the server."""

    cpu_us_per_event: float | None
    cores: float


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, in the order in which they ended; times in milliseconds, `sent` from the beginning."""

    sent_ms: float
    time_to_first_token_ms: float | None
    end_to_end_ms: float
    events: int
    prompt_tokens: int
    output_tokens: int
    complete: bool
    failure: str | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    url: str
    model: str
    traffic: Traffic
    requests: Requests
    failures: list[Failures]
    throughput: Throughput | None
    latency: Latency
    client: ClientCost
    each: list[Request]


def report(run: Run, traffic: Traffic, url: str) -> Report:
    """None of its figures is zero for want of a measurement."""
    outcomes = run.outcomes
    seconds = _seconds(outcomes)
    return Report(
        url=url,
        model=run.model,
        traffic=traffic,
        requests=_requests(run, traffic),
        failures=_failures(outcomes),
        throughput=_throughput([one for one in outcomes if one.whole], seconds),
        latency=_latency(outcomes),
        client=_cost(run, seconds),
        each=_each(outcomes),
    )


def _seconds(outcomes: Sequence[Outcome]) -> float:
    if not outcomes:
        return 0.0
    return max(one.ended for one in outcomes) - min(one.began for one in outcomes)


def _requests(run: Run, traffic: Traffic) -> Requests:
    whole = sum(one.whole for one in run.outcomes)
    failed = sum(one.failure is not None for one in run.outcomes)
    return Requests(
        planned=traffic.num_prompts,
        complete=whole,
        failed=failed,
        interrupted=len(run.outcomes) - whole - failed,
        not_sent=traffic.num_prompts - len(run.outcomes),
        empty=sum(one.whole and not one.times for one in run.outcomes),
        peak=run.peak,
    )


def _failures(outcomes: Iterable[Outcome]) -> list[Failures]:
    """The most frequent first."""
    failed = [one for one in outcomes if one.failure is not None]
    examples = {one.failure: one.message or "" for one in reversed(failed)}
    counts = Counter(str(one.failure) for one in failed)
    return [Failures(kind, count, examples[kind]) for kind, count in counts.most_common()]


def _throughput(whole: Sequence[Outcome], seconds: float) -> Throughput | None:
    if not whole or seconds <= 0:
        return None
    taken, made = sum(one.prompt_tokens for one in whole), sum(one.output_tokens for one in whole)
    return Throughput(
        seconds=seconds,
        input_tokens=taken,
        output_tokens=made,
        requests_per_s=len(whole) / seconds,
        input_tokens_per_s=taken / seconds,
        output_tokens_per_s=made / seconds,
        counted=all(one.counted for one in whole if one.times),
    )


def _latency(outcomes: Sequence[Outcome]) -> Latency:
    sound = [one for one in outcomes if one.failure is None]
    whole = [one for one in sound if one.whole]
    return Latency(
        time_to_first_token_ms=_in_ms(one.first for one in sound),
        between_events_ms=_in_ms(gap for one in sound for gap in one.gaps),
        time_per_output_token_ms=_in_ms(one.per_token for one in whole),
        end_to_end_ms=_in_ms(one.ended - one.began for one in whole),
    )


def _in_ms(seconds: Iterable[float | None]) -> Distribution | None:
    return distribution([1000 * each for each in seconds if each is not None])


def _cost(run: Run, seconds: float) -> ClientCost:
    events = sum(len(one.times) for one in run.outcomes)
    return ClientCost(1e6 * run.cpu_s / events if events else None, run.cpu_s / seconds if seconds > 0 else 0.0)


def _each(outcomes: Sequence[Outcome]) -> list[Request]:
    began = min((one.began for one in outcomes), default=0.0)
    return [
        Request(
            sent_ms=1000 * (one.began - began),
            time_to_first_token_ms=None if one.first is None else 1000 * one.first,
            end_to_end_ms=1000 * (one.ended - one.began),
            events=len(one.times),
            prompt_tokens=one.prompt_tokens,
            output_tokens=one.output_tokens,
            complete=one.whole,
            failure=one.failure,
        )
        for one in outcomes
    ]
