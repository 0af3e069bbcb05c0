"""Every asynchronous test of the runtime runs on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop
from runtime_world import World


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(params=["ipc", "tcp", "curve", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(request.param, tmp_path)
    yield world
    await world.close()


@pytest_asyncio.fixture
async def wire(tmp_path: Path) -> AsyncIterator[World]:
    """A world over ZeroMQ, for tests that look beneath the ports."""
    world = World("ipc", tmp_path)
    yield world
    await world.close()
