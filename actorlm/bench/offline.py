"""`actorlm bench offline`: what a model does in this process. Throughput of many prompts, latency of one stream.

Prompts are random token ids, new ones in each round, so that nothing but the shared prefix is ever in the prefix cache.
Generation is greedy and ignores ends of text. A round measures the throughput and then one stream; figures are medians
over rounds, so an odd number of them is best.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TypeVar

import msgspec

from actorlm.errors import BadRequest
from actorlm.offline.batch import Job
from actorlm.offline.prompts import Prompted
from actorlm.offline.session import Session
from actorlm.params import SamplingParams

Clock = Callable[[], float]
Round = TypeVar("Round", bound=msgspec.Struct)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """How much is asked of the model: tokens a prompt, generated tokens, tokens that all prompts begin with."""

    num_prompts: int = 32
    input_len: int = 128
    output_len: int = 64
    shared_prefix: int = 0


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """All prompts at once. Output counts generated tokens, total those of prompts too, cached ones or not."""

    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    cached_tokens: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt alone: time to the first token, time of each later one, and what that makes in a second."""

    time_to_first_token_ms: float
    time_per_output_token_ms: float
    output_tokens_per_s: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Medians, and every round."""

    model: str
    weights: str
    kernels: str
    threads: int
    workload: Workload
    throughput: Throughput
    latency: Latency
    throughput_rounds: list[Throughput]
    latency_rounds: list[Latency]


def check(workload: Workload) -> None:
    """Raises BadRequest for a workload that contradicts itself."""
    if workload.shared_prefix >= workload.input_len:
        raise BadRequest(
            f"--shared-prefix is {workload.shared_prefix} of {workload.input_len} tokens a prompt; it must be less"
        )


def measure(
    session: Session,
    workload: Workload,
    *,
    rounds: int,
    seed: int,
    weights: str,
    kernels: str,
    told: Callable[[str], None],
    clock: Clock = time.perf_counter,
) -> Report:
    """Runs one round to warm up, and then `rounds` that count; `told` gets a line a round. Raises BadRequest."""
    if workload.input_len + workload.output_len > session.context:
        raise BadRequest(
            f"{workload.input_len} + {workload.output_len} tokens are more than the context of {session.context}; "
            "lower --input-len or --output-len, or raise --kv-cache-tokens"
        )
    source = random.Random(seed)
    throughputs, latencies = [], []
    for number in range(rounds + 1):
        throughput = _throughput(session, workload, source, clock)
        latency = _latency(session, workload, source, clock)
        if number:
            throughputs.append(throughput)
            latencies.append(latency)
            told(_line(number, rounds, throughput, latency))
    return Report(
        model=session.model.name,
        weights=weights,
        kernels=kernels,
        threads=session.threads,
        workload=workload,
        throughput=_median(throughputs),
        latency=_median(latencies),
        throughput_rounds=throughputs,
        latency_rounds=latencies,
    )


def _line(number: int, rounds: int, throughput: Throughput, latency: Latency) -> str:
    return (
        f"round {number} of {rounds}: {throughput.output_tokens_per_s:,.1f} tokens/s together,"
        f" {latency.output_tokens_per_s:,.1f} in one stream"
    )


def _throughput(session: Session, workload: Workload, source: random.Random, clock: Clock) -> Throughput:
    prefix = _ids(session, workload.shared_prefix, source)
    rest = workload.input_len - workload.shared_prefix
    jobs = _jobs(session, [prefix + _ids(session, rest, source) for _ in range(workload.num_prompts)], workload)
    began, cached = clock(), 0
    with closing(session.run(jobs)) as steps:
        for _, complete in steps:
            cached += sum(output.num_cached_tokens for _, output in complete)
    seconds = clock() - began
    generated = workload.num_prompts * workload.output_len
    return Throughput(
        seconds=seconds,
        requests_per_s=workload.num_prompts / seconds,
        output_tokens_per_s=generated / seconds,
        total_tokens_per_s=(generated + workload.num_prompts * workload.input_len) / seconds,
        cached_tokens=cached,
    )


def _latency(session: Session, workload: Workload, source: random.Random, clock: Clock) -> Latency:
    jobs = _jobs(session, [_ids(session, workload.input_len, source)], workload)
    began, times = clock(), []
    with closing(session.run(jobs)) as steps:
        for tokens, _ in steps:
            if tokens:
                times.append(clock())
    each = (times[-1] - times[0]) / (len(times) - 1)
    return Latency(
        time_to_first_token_ms=1000 * (times[0] - began),
        time_per_output_token_ms=1000 * each,
        output_tokens_per_s=1 / each,
    )


def _ids(session: Session, count: int, source: random.Random) -> list[int]:
    return [source.randrange(session.model.vocab_size) for _ in range(count)]


def _jobs(session: Session, prompts: Iterable[list[int]], workload: Workload) -> list[Job]:
    params = SamplingParams(temperature=0.0, max_tokens=workload.output_len, ignore_eos=True)
    return [
        session.preparation.job(index, str(index), Prompted(None, ids), params, seed=0, where="prompt")
        for index, ids in enumerate(prompts)
    ]


def _median(rounds: Sequence[Round]) -> Round:
    """Field by field."""
    kind = type(rounds[0])
    return kind(**{name: statistics.median(getattr(one, name) for one in rounds) for name in kind.__struct_fields__})
