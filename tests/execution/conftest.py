"""Tiny models on disk, made once, and ranks that share one."""

import driving
import pytest
from driving import VARIANTS, make_tiny
from ranks import Ranks


@pytest.fixture(scope="session", params=VARIANTS)
def tiny(request, tmp_path_factory):
    """A tiny random model: transformers', and the description of the same one on disk."""
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def tiny_grouped(tmp_path_factory):
    """The first variant only."""
    return make_tiny("grouped-tied", tmp_path_factory.mktemp("model"))


@pytest.fixture
def ranks(tmp_path):
    """Makes ranks of a model, and ends them."""
    made = []

    def make(description, tensor, pipeline=1, **changes):
        directory = tmp_path / str(len(made))
        directory.mkdir()
        options = {"kernels": driving.KERNELS, "tensor": tensor, "pipeline": pipeline, **changes}
        made.append(Ranks(description, directory, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
