"""The API on a backend without a tree."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fake_backend import FakeBackend, make_client, serving

from actorlm.api.app import create_app
from actorlm.config import HttpConfig


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def client(backend: FakeBackend) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(backend) as one:
        yield one


@pytest.fixture
async def address(backend: FakeBackend) -> AsyncIterator[str]:
    async with serving(create_app(backend, HttpConfig())) as one:
        yield one
