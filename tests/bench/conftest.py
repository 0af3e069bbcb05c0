"""The odd server, which is that of the tests of actorlm.remote."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def odd():
    """The module: answers piece by piece."""
    path = Path(__file__).parents[1] / "remote/odd_server.py"
    spec = importlib.util.spec_from_file_location("bench_odd_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
