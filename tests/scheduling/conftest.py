"""Replicas whose books are checked when the test is over."""

from collections.abc import Callable, Iterator

import pytest
from scheduling_replica import Replica


@pytest.fixture
def new_replica() -> Iterator[Callable[..., Replica]]:
    replicas = []

    def make(**options) -> Replica:
        replicas.append(Replica(**options))
        return replicas[-1]

    yield make
    for replica in replicas:
        replica.scheduler.check()
        replica.check_outputs()
