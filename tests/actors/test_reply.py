"""What has come of a request: everything, once, merged where nobody took it; then its one end."""

import asyncio

import pytest

from actorlm.actors.reply import Reply
from actorlm.api.ports import Delta
from actorlm.errors import Interrupted
from actorlm.messages.client import RequestCompleted
from actorlm.wire import int32


async def test_untaken_deltas_of_a_choice_are_merged():
    reply = Reply(1, 1)
    reply.feed(Delta(0, "a", 1, None, 2, ids=int32((1,))))
    reply.feed(Delta(1, "x", 1, None, 2, ids=int32((7,))))
    reply.feed(Delta(0, "b", 2, "length", 2, ids=int32((2, 3))))
    reply.complete(RequestCompleted(1, 1, 4, 2))
    assert await reply.take() == Delta(0, "ab", 3, "length", 2, ids=int32((1, 2, 3)))
    assert await reply.take() == Delta(1, "x", 1, None, 2, ids=int32((7,)))
    assert await reply.take() is None
    assert await reply.take() is None


async def test_an_error_comes_after_what_has_come_already():
    reply = Reply(1, 1)
    reply.feed(Delta(0, "a", 1))
    reply.fail(Interrupted("first"))
    reply.fail(Interrupted("second"))
    assert await reply.take() == Delta(0, "a", 1)
    with pytest.raises(Interrupted, match="first"):
        await reply.take()


@pytest.mark.parametrize("end", ["feed", "fail", "complete"])
async def test_whoever_waits_is_woken(end):
    reply = Reply(1, 1)
    waiting = asyncio.ensure_future(reply.take())
    await asyncio.sleep(0)
    if end == "feed":
        reply.feed(Delta(0, "a", 1))
        assert await waiting == Delta(0, "a", 1)
    elif end == "fail":
        reply.fail(Interrupted("x"))
        with pytest.raises(Interrupted):
            await waiting
    else:
        reply.complete(RequestCompleted(1, 1, 0, 0))
        assert await waiting is None
