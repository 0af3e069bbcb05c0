"""`actorlm bench serve`: measures any OpenAI-compatible server, by what a client of it sees.

Learns how the server counts text, warms it up, then sends the traffic. Prompts and prefix of the warm-up are others,
so that its prefix cache is of no use to what is measured.
"""

import asyncio
import random
import time
from collections.abc import Callable

import msgspec

from actorlm.bench.load import Due, Load
from actorlm.bench.prompts import SAMPLES, Ids, Scale, Texts, scale, text
from actorlm.bench.recording import Clock, Outcome
from actorlm.bench.traffic import PATHS, Traffic, fields, for_warm_up, requests
from actorlm.remote.failure import Failure
from actorlm.remote.server import Server

Tell = Callable[[str], None]


class Run(msgspec.Struct, frozen=True):
    """What was measured. `cpu_s` is what this process used meanwhile, `peak` the most requests under way together."""

    model: str
    outcomes: list[Outcome]
    interrupted: bool
    peak: int
    cpu_s: float


async def measure(
    server: Server,
    traffic: Traffic,
    *,
    model: str | None,
    warmup: int,
    told: Tell,
    clock: Clock = time.perf_counter,
    cpu: Clock = time.process_time,
) -> Run:
    """Raises Failure if the server cannot even say what it serves. Cancelled, it returns what was measured so far."""
    served = model or await server.model()
    source = random.Random(traffic.seed)
    how = await _scale(server, traffic, served, source, told)
    await _warm_up(server, _plan(server, for_warm_up(traffic, warmup), served, how, source), told)
    load = Load(
        server,
        _plan(server, traffic, served, how, source),
        max_concurrency=traffic.max_concurrency,
        clock=clock,
        told=told,
    )
    told(f"{traffic.num_prompts} requests to {served}, seed {traffic.seed}")
    before = cpu()
    await load.run()
    return Run(served, load.outcomes, load.interrupted, load.peak, cpu() - before)


async def _scale(server: Server, traffic: Traffic, model: str, source: random.Random, told: Tell) -> Scale:
    """How this server counts words. Only text needs it."""
    if traffic.prompts == "ids":
        return Scale()
    try:
        found = scale([await _count(server, traffic, model, text(words, source)) for words in SAMPLES])
    except Failure as failure:
        told(failure.message)
        found = None
    if found is None:
        told("how the server counts text is not known: a word is taken for a token")
    return found or Scale()


async def _count(server: Server, traffic: Traffic, model: str, prompt: str) -> int:
    asked = dict(fields(traffic, model, prompt, 1))
    del asked["stream"], asked["stream_options"]
    answer = await server.answer(PATHS[traffic.api], asked)
    usage = answer.get("usage") if isinstance(answer, dict) else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


async def _warm_up(server: Server, plan: list[Due], told: Tell) -> None:
    if not plan:
        return
    load = Load(server, plan, max_concurrency=None, clock=time.perf_counter, told=told)
    await load.run()
    if load.interrupted:
        raise asyncio.CancelledError
    failed = [outcome for outcome in load.outcomes if outcome.failure is not None]
    told(f"warm-up: {len(plan)} requests" + (f", {len(failed)} failed: {failed[0].message}" if failed else ""))


def _plan(server: Server, traffic: Traffic, model: str, how: Scale, source: random.Random) -> list[Due]:
    """Requests ready to be sent, so that sending them costs nothing."""
    prompts = (
        Ids(traffic.vocab_size, traffic.shared_prefix, source)
        if traffic.prompts == "ids"
        else Texts(how, traffic.shared_prefix, source)
    )
    return [
        (
            each.due,
            server.post(PATHS[traffic.api], fields(traffic, model, prompts.make(each.input_len), each.output_len)),
        )
        for each in requests(traffic, source)
    ]
