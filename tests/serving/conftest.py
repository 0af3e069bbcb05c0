"""Trees that several tests share. A test that harms its tree starts one of its own."""

import json
import tempfile
from pathlib import Path

import pytest

pytest.register_assert_rewrite("answers", "exchange", "streaming", "tree")

import tiny_llama as tiny  # noqa: E402 - see the next line
from tree import Tree  # noqa: E402 - rewritten asserts tell what they compared

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())["items"]


@pytest.fixture
def start():
    """Starts trees, ready unless asked otherwise, and ends them with the test."""
    trees = []

    def begin(*arguments, ready=True, **options):
        tree = Tree(*arguments, **options)
        trees.append(tree)
        return tree.wait_ready() if ready else tree

    yield begin
    for tree in trees:
        tree.close()


@pytest.fixture(scope="module")
def null_tree():
    """A tree of the null model, without a time per step."""
    with Tree("--model-impl", "null") as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="module")
def slow_null_tree():
    """A tree of the null model, 20 ms a step."""
    with Tree("--model-impl", "null", "--null-step-ms", "20") as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="module")
def tree_of():
    """Gives trees by their arguments, each started once and shared by the tests of a module."""
    trees = {}

    def shared(*arguments):
        if arguments not in trees:
            trees[arguments] = Tree(*arguments)
        return trees[arguments].wait_ready()

    yield shared
    for tree in trees.values():
        tree.close()


@pytest.fixture
def home():
    """An environment in which all files of a tree lie below one short directory."""
    names = {"XDG_RUNTIME_DIR": "run", "TMPDIR": "tmp", "HOME": "home", "XDG_CACHE_HOME": "cache"}
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as directory:
        for name in names.values():
            Path(directory, name).mkdir()
        yield {variable: f"{directory}/{name}" for variable, name in names.items()}


@pytest.fixture
def tiny_llama(tmp_path):
    """A model directory of a few kilobytes, for the test to damage."""
    return tiny.write(tmp_path / "tiny-llama")


@pytest.fixture(scope="session")
def smollm2():
    """The default model in float32."""
    with Tree("--dtype", "float32") as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="session")
def golden():
    """Prompts of the real model with their greedy continuations, as transformers computes them."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_texts(golden):
    return [item["greedy_text"] for item in golden]
