"""Models in this process: the null model with its oracle, a tiny random Llama, and the default model in float32."""

import importlib.util
import json
from pathlib import Path

import pytest

from actorlm import LLM
from actorlm.checkpoint.pull import pulled_path

SERVING = Path(__file__).parents[1] / "serving"


def _from_serving(name):
    spec = importlib.util.spec_from_file_location(f"offline_{name}", SERVING / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def oracle():
    """What the null model must say."""
    return _from_serving("null_model")


@pytest.fixture(scope="session")
def golden():
    """Prompts of the real model with their greedy continuations, as transformers computes them."""
    return json.loads((SERVING / "golden.json").read_text())["items"]


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory):
    """A random Llama of some kilobytes with a vocabulary of bytes, 128 tokens long."""
    return _from_serving("tiny_llama").write(tmp_path_factory.mktemp("tiny") / "tiny-llama", seed=1)


@pytest.fixture(scope="session")
def smollm2():
    if not pulled_path("smollm2-135m").exists():
        pytest.skip("the default model is not in the cache; run `actorlm pull smollm2-135m`")
    with LLM(dtype="float32") as llm:
        yield llm


@pytest.fixture
def null():
    """Makes LLMs of the null model, each checked and closed with the test."""
    made = []

    def make(**options):
        made.append(LLM(model_impl="null", **options))
        return made[-1]

    yield make
    for llm in made:
        session = llm._session
        if session._engine is not None:
            scheduler = session._engine._core.scheduler
            session._thread.submit(scheduler.check).result()
            assert not scheduler.has_work
        llm.close()


@pytest.fixture
def tiny(tiny_directory):
    made = []

    def make(**options):
        made.append(LLM(str(tiny_directory), threads=1, **options))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
