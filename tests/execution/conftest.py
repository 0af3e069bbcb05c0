"""Tiny models on disk, made once."""

import pytest
from driving import VARIANTS, make_tiny


@pytest.fixture(scope="session", params=VARIANTS)
def tiny(request, tmp_path_factory):
    """A tiny random model: transformers', and the description of the same one on disk."""
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def tiny_grouped(tmp_path_factory):
    """The first variant only."""
    return make_tiny("grouped-tied", tmp_path_factory.mktemp("model"))
