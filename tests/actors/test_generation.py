"""A reader that stops reading: what waits for it is bounded, and comes before the error that says so."""

import asyncio

import pytest
from structlog.testing import capture_logs

from actorlm.actors import generation as generation_module
from actorlm.errors import Overloaded


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(generation_module, "MAX_UNREAD_BYTES", 2000)
    monkeypatch.setattr(generation_module, "UNREAD_S", 0.05)


ENDLESS = {"max_tokens": 3000, "seed": 1}


async def ids_of(generation):
    """All ids that come from now on."""
    return [token async for deltas in generation for delta in deltas for token in delta.token_ids]


@pytest.mark.usefixtures("impatient")
async def test_b24_a_reader_that_is_left_behind_gets_what_waits_and_an_error(memory_tree):
    async with memory_tree() as tree:
        expected = await ids_of(tree.submit([1], **ENDLESS))
        with capture_logs() as logged:
            deaf, beside = tree.submit([1], **ENDLESS, trace_id="deaf"), tree.submit([1], **ENDLESS)
            ids = list((await anext(deaf))[0].token_ids)
            assert await ids_of(beside) == expected
            await tree.until(lambda: not tree.frontend._open)
        [line] = [line for line in logged if line["event"] == "client left behind"]
        assert (line["request_id"], line["log_level"]) == ("deaf", "warning")
        ids += (await anext(deaf))[0].token_ids
        with pytest.raises(Overloaded, match="was not read within"):
            await anext(deaf)
        assert ids == expected[: len(ids)]
        assert 100 < len(ids) < len(expected)
        await tree.settled()


@pytest.mark.usefixtures("impatient")
async def test_b24_time_alone_or_bytes_alone_leave_nobody_behind(memory_tree):
    """A reader that has little to read may take its time, and one that has not come yet is no slow one."""
    async with memory_tree() as tree:
        short, unread = tree.submit([1], max_tokens=300), tree.submit([1], **ENDLESS)
        ids = list((await anext(short))[0].token_ids)
        await asyncio.sleep(0.1)
        await tree.until(lambda: not tree.frontend._open)
        assert len(ids + await ids_of(short)) == 300
        assert len(await ids_of(unread)) == 3000


async def test_b24_a_reader_that_reads_on_is_waited_for_up_to_a_bound(memory_tree, monkeypatch):
    """What it has taken may take it long, as long as parts of it are read."""
    monkeypatch.setattr(generation_module, "MAX_UNREAD_BYTES", 2000)
    monkeypatch.setattr(generation_module, "UNREAD_S", 1.0)

    async def read_slowly(generation):
        async for _ in generation:
            while tree.frontend._open:
                await asyncio.sleep(0.01)
                generation.read_on()

    async with memory_tree(step_ms=1) as tree:
        steady = {"max_tokens": 1500, "seed": 1}
        await read_slowly(tree.submit([1], **steady))
        monkeypatch.setattr(generation_module, "MOST_UNREAD_BYTES", 4000)
        with pytest.raises(Overloaded, match="or more than"):
            await read_slowly(tree.submit([1], **steady))
        await tree.settled()
