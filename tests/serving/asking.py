"""Requests over ZeroMQ, each read to its end."""

import asyncio
from contextlib import asynccontextmanager
from typing import NamedTuple

from hostile import bound_sockets
from tree import PATIENCE

from actorlm import Client

ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


class Answer(NamedTuple):
    """Ids, texts, finish reasons and entries of log-probabilities by choice, and the usage."""

    ids: list
    texts: list
    reasons: list
    scores: list
    usage: object


def address(tree, frontend=0):
    return f"ipc://{bound_sockets(tree)[f'frontend-{frontend}']}"


@asynccontextmanager
async def connected(tree, **options):
    async with Client(address(tree), **{"timeout_s": 10 * PATIENCE} | options) as client:
        yield client


async def read(stream):
    """The whole answer. Each choice ends exactly once, and says nothing after that (b10)."""
    ids, texts, reasons, scores = {}, {}, {}, {}
    async for delta in stream:
        assert delta.choice not in reasons, f"choice {delta.choice} goes on after its end"
        assert delta.tokens == len(delta.token_ids)
        ids.setdefault(delta.choice, []).extend(delta.token_ids)
        scores.setdefault(delta.choice, []).extend(delta.scores.output if delta.scores is not None else ())
        texts[delta.choice] = texts.get(delta.choice, "") + delta.text
        if delta.finish is not None:
            reasons[delta.choice] = delta.finish
    assert sorted(ids) == sorted(reasons) == list(range(len(ids)))
    return Answer(*([found[choice] for choice in sorted(ids)] for found in (ids, texts, reasons, scores)), stream.usage)


async def until(condition, seconds, every=0.02):
    """Waits for a true value without holding up the loop; the condition may block for a moment."""
    async with asyncio.timeout(seconds * PATIENCE):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(every)


def load(tree):
    return tree.total("num_requests_running"), tree.total("num_requests_waiting")
